"""Faults for tests of programs: of processes, of embedded hosts, of connections, and of the hosts and Slurm of a lab.

Agents, heads and programs fail at the places `FAILPOINTS` if the variable `FAILPOINTS_VARIABLE` says so, as by
``head.keep=kill``.

`tests/faults/README.md` has the faults that this package itself is tested with.
"""

from __future__ import annotations

from monarch_hpc.core.failpoints import FAILPOINTS, FAILPOINTS_VARIABLE
from monarch_hpc.testing.faults.embedded import EmbeddedHost, hosts_of
from monarch_hpc.testing.faults.inside import Faulty
from monarch_hpc.testing.faults.lab import LabFaults
from monarch_hpc.testing.faults.processes import alive, memory_group, stopped
from monarch_hpc.testing.faults.wire import FaultyWire

__all__ = [
    "FAILPOINTS",
    "FAILPOINTS_VARIABLE",
    "EmbeddedHost",
    "Faulty",
    "FaultyWire",
    "LabFaults",
    "alive",
    "hosts_of",
    "memory_group",
    "stopped",
]
