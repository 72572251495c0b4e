"""A real Slurm of several hosts on one machine, for tests and experiments."""

from __future__ import annotations

from monarch_hpc.testing.slurmlab.lab import SlurmLab
from monarch_hpc.testing.slurmlab.processes import HostProcess
from monarch_hpc.testing.slurmlab.requirements import find_problems

__all__ = ["HostProcess", "SlurmLab", "find_problems"]
