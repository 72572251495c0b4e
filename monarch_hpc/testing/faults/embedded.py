"""Faults of embedded hosts, which are processes of this machine: a host without power, a host that stands still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.attach.head.status import query_status
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import each_pid, read_stat
from monarch_hpc.testing.faults.processes import alive, stopped
from monarch_hpc.testing.waiting import wait_until

__all__ = ["EmbeddedHost", "hosts_of"]

_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class EmbeddedHost:
    """One host of an embedded allocation.

    Args:
        rank: its rank; the head is on host 0.
        agent: process id of its agent.
    """

    rank: int
    agent: int

    def processes(self) -> list[int]:
        """Return its processes: the agent, and all that descend from it."""
        parents = {pid: stat.parent for pid in each_pid() if (stat := read_stat(pid)) is not None}
        found = [self.agent]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return [pid for pid in found if alive(pid)]

    def kill_agent(self) -> None:
        """Kill the agent alone; its procs end with it, and what they have started is for the next sweep."""
        os.kill(self.agent, signal.SIGKILL)

    def power_off(self) -> None:
        """Kill all its processes at once; they are gone when this returns. The kernel still ends their connections."""
        pids = self.processes()
        with stopped(*pids):  # else one would see the end of another
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(f"the end of host {self.rank}", lambda: not any(map(alive, pids)))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes, as a suspended virtual machine; they go on when the context ends."""
        with stopped(*self.processes()):
            yield


def hosts_of(directory: Path) -> list[EmbeddedHost]:
    """Return the hosts of the embedded allocation in *directory*.

    Raises:
        TimeoutError: its head does not answer.
    """
    status = query_status(directory, _ANSWER_S)
    if status is None:
        raise TimeoutError(f"the head of {directory} did not answer within {_ANSWER_S:.0f} s")
    return [EmbeddedHost(rank, int(str(host["pid"]))) for rank, host in enumerate(status["hosts"])]
