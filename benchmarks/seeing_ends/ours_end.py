"""monarch-hpc: an embedded allocation, whose records are kept or not."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import monarch_hpc.actor
from benchmarks.seeing import Echo, fill, open_echo
from benchmarks.seeing_ends.end import EndpointsEnd, Missing, pids_of
from monarch_hpc import ActorMesh, hosts, telemetry
from monarch_hpc.config.program import DIRECTORY_VARIABLE

__all__ = ["OurEnd"]

_QUERY_S = 60.0
_COMMAND = (sys.executable, "-m", "monarch_hpc.cli")


class OurEnd(EndpointsEnd):
    """The program of `benchmarks.seeing`."""

    _actor: ActorMesh[Echo]

    def start(self, *, recording: bool) -> None:
        monarch_hpc.actor.unhandled_fault_hook = lambda failure: None  # by default the first death ends the program
        self._opened = ExitStack()
        self._actor = self._opened.enter_context(open_echo("always" if recording else "never", 1))

    def fill(self, num: int) -> None:
        fill(self._actor, num)

    def count(self) -> int:
        return _number("SELECT count(*) FROM procs")

    def group(self) -> int:
        sql = "SELECT endpoint, count(*) AS calls, min(t) AS first FROM handled GROUP BY endpoint"
        found = telemetry.query(sql, timeout_s=_QUERY_S)
        return sum(int(str(row[1])) for row in found.rows if row[0] == "echo")

    def helpers(self) -> list[int]:
        return pids_of("monarch_hpc.telemetry")

    def crowd(self, num: int) -> None:
        procs = hosts().spawn_procs(per_host={"p": num - 1})
        self._crowd = procs.spawn("crowd", Echo)
        self._crowd.echo.call(0).get()

    def listing(self) -> list[str]:
        sql = "SELECT actor, actor_rank, actor_state, pid, host FROM actors"
        return [*_COMMAND, "query", "--allocation", os.environ[DIRECTORY_VARIABLE], sql]

    def num_calls(self) -> int:
        return _number("SELECT count(*) FROM handled WHERE endpoint = 'echo'")

    def state(self) -> str:
        sql = "SELECT state, cause FROM procs WHERE mesh >= 0"
        ((state, cause),) = telemetry.query(sql, timeout_s=_QUERY_S, partial=True).rows
        return f"{state}, {cause}" if cause else str(state)

    def stack(self) -> str:
        rows = telemetry.query("SELECT stack, problem FROM stacks WHERE mesh >= 0", timeout_s=_QUERY_S).rows
        if not rows:
            raise Missing("no: the process is gone")
        return "yes" if any(row[0] for row in rows) else f"no: {rows[0][1]}"

    def finish(self) -> None:
        raise Missing("an embedded allocation is removed; those by Slurm keep their records")

    def close(self) -> None:
        self._opened.close()


def _number(sql: str) -> int:
    ((value,),) = telemetry.query(sql, timeout_s=_QUERY_S).rows
    return int(str(value))
