"""Refuses a question about a run, rank or host that does not exist, which would have an empty answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from monarch_hpc.mesh.output.fold import render_ranks
from monarch_hpc.wire.tables.procs import PROCS, RunProcess

__all__ = ["explain_absence", "refuse_absent"]

_WAIT_S = 2.0
"""Longer than a live host takes to answer; without its answer nothing is refused."""

_NAMED = 10
"""Limit on the runs or hosts in a message."""


def refuse_absent(targets: Iterable[tuple[str, Path]], where: Mapping[str, object]) -> None:
    """Refuse a choice of rows that fits no process, once a question has been answered with no row.

    Args:
        targets: name and directory of the allocations asked.
        where: the choice; `run`, `host` and `rank` (numbers) of it are checked.

    Raises:
        BadParameter: its run, rank or host does not exist. Not raised if that is unknown, since a head or a host does
            not answer.
    """
    if not any(key in where for key in ("run", "rank", "host")):
        return
    from monarch_hpc.agent.output.retention import printed_runs, removed_runs
    from monarch_hpc.attach.head.status import query_status
    from monarch_hpc.attach.tables.rows import query_rows

    processes: list[RunProcess] = []
    runs: list[str] = []
    ended: set[str] = set()
    complete = True
    for _, directory in targets:
        status, answer = query_status(directory, _WAIT_S), query_rows(directory, PROCS, _WAIT_S)
        if status is None:
            return
        runs += [str(run["run"]) for run in status["runs"]]
        ended.update(printed_runs(directory), removed_runs(directory))
        complete &= answer is not None and not (answer.missing or answer.left_out)
        processes += answer.rows if answer is not None else []
    problem = explain_absence(processes if complete else [], runs, where, ended)
    if problem is not None:
        option, sentence = problem
        raise click.BadParameter(sentence, param_hint=f"'{option}'")


def explain_absence(
    processes: Iterable[RunProcess], runs: Sequence[str], where: Mapping[str, object], ended: Iterable[str] = ()
) -> tuple[str, str] | None:
    """Return the option whose value does not exist and a sentence about it; None if each of them exists. Pure.

    Args:
        processes: those of all runs; none if not all are known.
        runs: the runs that go on.
        ended: runs that have ended and are still known.
    """
    run, host, ranks = where.get("run"), where.get("host"), where.get("rank")
    procs = [one for one in processes if one.mesh >= 0]
    of_run = ""
    if run is not None:
        if run not in (*runs, *ended):
            return "--run", f"there is no run {run}; {_there_are(runs) if runs else 'none goes on'}"
        procs, of_run = [one for one in procs if one.run == run], f" of run {run}"
    if not procs:
        return None  # its answer says so
    if host is not None:
        hosts = {one.host for one in procs}
        if host not in hosts:
            return "--host", f"no proc{of_run} is on host {host}; {_there_are(sorted(hosts))}"
        procs, of_run = [one for one in procs if one.host == host], f"{of_run} on host {host}"
    known = {one.rank for one in procs}
    wanted = set(ranks) if isinstance(ranks, list) else known
    if not wanted & known:
        return "--rank", f"no proc{of_run} has rank {_digits(wanted)}; there are {_digits(known)}"
    return None


def _digits(ranks: Iterable[int]) -> str:
    """The ranks as `--rank` takes them."""
    return re.sub(r"r0*(?=\d)", "", render_ranks(ranks))


def _there_are(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"there are: {', '.join(names[:_NAMED])}{more}"
