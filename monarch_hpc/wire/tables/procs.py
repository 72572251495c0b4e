"""The table of the processes of all runs."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.schema import Table

__all__ = ["PROCS", "ProcRow", "RunProcess"]


@dataclass(frozen=True, slots=True)
class RunProcess:
    """One process of a run, a proc or a program: the first columns of each table of these."""

    run: Annotated[str, "its run"]
    mesh: Annotated[int, "number of its mesh; -1 for a program"]
    rank: Annotated[int, "its rank in that mesh; 0 for a program"]
    host: Annotated[str, "name of its host"]
    pid: Annotated[int, "its process id; 0 before it is forked"]
    state: Annotated[str, "`starting`, `ready`, `stopped` by a signal, `stopping`, or `ended`"]
    cause: Annotated[str, "why it ended; empty before"]

    @property
    def first_columns(self) -> tuple[str, int, int, str, int, str, str]:
        """The values of these columns, for another row of the process."""
        return self.run, self.mesh, self.rank, self.host, self.pid, self.state, self.cause


@dataclass(frozen=True, slots=True)
class ProcRow(RunProcess):
    """One process of a run and the memory that it takes."""

    rss_bytes: Annotated[int, "its resident memory, in bytes, shared pages included; 0 if it has ended"]
    cpu_s: Annotated[float, "CPU time of all its threads so far, in seconds; 0 if it has ended"]


PROCS = Table("procs", ProcRow, "Processes of runs: procs, programs, and procs that died lately without a request.")
