"""Faults for tests of programs: of processes, of embedded hosts, of connections, and of the hosts and Slurm of a lab.

`tests/faults/README.md` has the faults that this package itself is tested with.
"""

from __future__ import annotations

from monarch_hpc.testing.faults.embedded import EmbeddedHost, hosts_of
from monarch_hpc.testing.faults.inside import Faulty
from monarch_hpc.testing.faults.lab import LabFaults
from monarch_hpc.testing.faults.processes import alive, memory_group, stopped
from monarch_hpc.testing.faults.wire import FaultyWire

__all__ = ["EmbeddedHost", "Faulty", "FaultyWire", "LabFaults", "alive", "hosts_of", "memory_group", "stopped"]
