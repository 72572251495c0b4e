"""Samples of procs, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import PROC, read_stat
from monarch_hpc.wire.tables.samples import ProcSample

__all__ = ["ProcPlace", "sample_proc"]


@dataclass(frozen=True, slots=True)
class ProcPlace:
    """A proc of this host.

    Args:
        pid: its process id.
    """

    run: str
    mesh: int
    rank: int
    pid: int


def sample_proc(place: ProcPlace, host: str, t: float, proc: Path = PROC) -> ProcSample | None:
    """Look at one proc; None if it has ended.

    Args:
        proc: where /proc is.
    """
    stat = read_stat(place.pid, proc)
    if stat is None or stat.has_ended:
        return None
    folder = proc / str(place.pid)
    try:
        num_fds = len(os.listdir(folder / "fd"))
    except OSError:  # another user's, as after a change of user
        num_fds = 0
    return ProcSample(
        place.run,
        place.mesh,
        place.rank,
        host,
        place.pid,
        t,
        stat.state,
        stat.resident_pages * os.sysconf("SC_PAGE_SIZE"),
        stat.cpu_s,
        stat.num_threads,
        num_fds,
        stat.major_faults,
    )
