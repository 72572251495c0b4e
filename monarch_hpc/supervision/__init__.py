"""Liveness of peers and processes, and who leads: pure state machines that turn times and events into decisions."""

from __future__ import annotations

from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.supervision.standstill import STOPPED, Standstill

__all__ = ["STOPPED", "Lease", "Liveness", "Standstill"]
