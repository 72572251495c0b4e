"""Tools for tests of monarch-hpc programs: a Slurm of several hosts on one machine, waits with deadlines, a clock."""

from __future__ import annotations

from monarch_hpc.testing.clock import ManualClock
from monarch_hpc.testing.waiting import wait_until

__all__ = ["ManualClock", "wait_until"]
