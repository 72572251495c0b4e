"""Who is alive: pure machines that take times and events and answer with decisions."""

from __future__ import annotations

from monarch_hpc.supervision.lease import Lease, Liveness
from monarch_hpc.supervision.standstill import STOPPED, Standstill

__all__ = ["STOPPED", "Lease", "Liveness", "Standstill"]
