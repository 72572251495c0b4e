"""Tools for tests of monarch-hpc programs: a Slurm of several hosts on one machine, and waits with deadlines."""

from __future__ import annotations

from monarch_hpc.testing.waiting import wait_until

__all__ = ["wait_until"]
