"""Tools to test programs on real parts: a Slurm of several hosts on one machine, waits with deadlines."""

from __future__ import annotations

from monarch_hpc.testing.waiting import wait_until

__all__ = ["wait_until"]
