"""Questions in SQL about the allocations that a program uses."""

from __future__ import annotations

from _thread import allocate_lock
from pathlib import Path
from weakref import WeakKeyDictionary

from monarch_hpc.attach.tables.kept_questions import KeptQuestions
from monarch_hpc.attach.tables.sql import QueryResult, query_allocations
from monarch_hpc.core.arguments import check_seconds, check_text
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.mesh.program.controller import Controller

__all__ = ["directory_of", "kept_questions", "query", "query_one"]

_WAIT_S = 10.0

_of: WeakKeyDictionary[Controller, KeptQuestions] = WeakKeyDictionary()
_lock = allocate_lock()


def query(sql: str, *, since_s: float | None = None, timeout_s: float = _WAIT_S, partial: bool = False) -> QueryResult:
    """Ask all processes of the program's allocations, and answer a question in SQL about their records.

    The tables and their columns are in docs/telemetry.md; the dialect is that of DataFusion. Hosts need the extra
    ``monarch-hpc[telemetry]``; the program needs pyarrow for the rows of the answer.

    Args:
        since_s: only records of the last so many seconds are asked for; None for all that there are.
        timeout_s: limit on the time to check the query, then on that of hosts to answer, and then on that of the query
            itself.
        partial: answer also if only the latest of the rows fit that are joined or grouped; `.cut` names them.

    Raises:
        QueryError: the SQL is wrong, would change something, took too long or too much memory; the rows that it is made
            of do not fit into an answer; or the extra is not installed where it would be answered.
        RuntimeError: this is a proc, not the program.
    """
    sql = check_text("the query", sql, filled=True)
    timeout_s = check_seconds("timeout_s", timeout_s)
    since_s = None if since_s is None else check_seconds("since_s", since_s)
    controller = Controller.instance()
    directories = [tenancy.directory for tenancy in controller.tenancies.all()]
    return query_allocations(directories, sql, timeout_s, since_s, partial=partial, kept=kept_questions(controller))


def query_one(allocation: str, sql: str, timeout_s: float) -> QueryResult:
    """Ask the processes of one of these allocations.

    Raises:
        AllocationError: the program does not use it, or not any more.
        QueryError, RuntimeError: as for `query`.
    """
    kept = kept_questions(Controller.instance())
    return query_allocations([directory_of(allocation)], sql, timeout_s, kept=kept)


def kept_questions(controller: Controller) -> KeptQuestions:
    """What a program keeps between its questions, as long as its controller is open."""
    with _lock:
        kept = _of.get(controller)
        if kept is None:
            kept = _of[controller] = KeptQuestions()
            controller.resources.callback(kept.close)
        return kept


def directory_of(allocation: str) -> Path:
    """Return the directory of an allocation that the program uses.

    Raises:
        AllocationError: the program does not use it, or not any more.
        RuntimeError: this is a proc, not the program.
    """
    for tenancy in Controller.instance().tenancies.all():
        if tenancy.allocation == allocation:
            return tenancy.directory
    raise AllocationError(allocation[:8], "is not used by this program any more: ask for the job's state again")
