"""Validates programs' requests before the head acts on them: fields of the right type may hold impossible values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.ids import MAX_RUN_CHARS
from monarch_hpc.core.process.words import is_word
from monarch_hpc.wire.control.procs import MAX_PROCS_PER_HOST, SpawnProcs
from monarch_hpc.wire.control.questions import Ask
from monarch_hpc.wire.control.runs import OpenRun
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.pieces import parse_question

__all__ = ["problem_of", "problem_of_links", "problem_of_opening", "problem_of_question", "problem_of_run"]

_MAX_BITS = 63
"""Maximum size of mesh numbers and ranks: frames and records carry them in fields of 64 bits."""

_MAX_DEADLINE_S = 1e9

_RUN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_RUN_CHARS - 1}}}")
"""A run's name is also the name of its folder."""

_LINK = {"host": int, "fabric": str, "why": str, "procs": int}
"""Fields of each of `RunLinks.links`, which `monarch-hpc status` reads."""


def problem_of_run(run: str) -> str:
    """Return why *run* is not a valid name of a run; empty if it is."""
    return (
        ""
        if _RUN.fullmatch(run)
        else f"run {run!r:.80}: 1 to {MAX_RUN_CHARS} letters, digits, '.', '_' or '-' name a run"
    )


def problem_of_opening(opened: OpenRun) -> str:
    """Return why a run cannot be opened; empty if it can."""
    for mesh in opened.meshes:
        if len(mesh) < 2 or min(mesh) < 0 or mesh[0].bit_length() > _MAX_BITS:
            return f"a mesh has a number and hosts, not {mesh!s:.80}"
    return problem_of_run(opened.run)


def problem_of_links(links: Iterable[Mapping[str, object]]) -> str:
    """Return why `RunLinks.links` cannot be shown; empty if they can."""
    for link in links:
        if link.keys() != _LINK.keys() or any(type(link[name]) is not kind for name, kind in _LINK.items()):
            return f"a link has the fields {', '.join(_LINK)}, not {link!r:.200}"
    return ""


def problem_of_question(question: Ask) -> str:
    """Return why no process can answer *question*; empty if they can."""
    if question.pieces:
        try:
            parse_question(question.pieces)
        except FrameError as error:
            return str(error)
    table = TABLES.get(question.table)
    if table is None:
        return f"there is no table {question.table!r:.80}; there are: {', '.join(TABLES)}"
    return table.problem_of(question.where)


def problem_of(order: SpawnProcs) -> str:
    """Return why agents cannot carry out *order*; empty if they can."""
    return _problem_of_ranks(order) or _problem_of_settings(order)


def _problem_of_ranks(order: SpawnProcs) -> str:
    if order.mesh < 0 or max(order.mesh, order.num_ranks).bit_length() > _MAX_BITS:
        return f"mesh {order.mesh} of {order.num_ranks} procs is out of range"
    if not 1 <= order.per_host <= MAX_PROCS_PER_HOST:
        return f"{order.per_host} procs on each host: 1 to {MAX_PROCS_PER_HOST} can be"
    if not order.hosts or len(order.hosts) != len(order.first_rank) or len(set(order.hosts)) != len(order.hosts):
        return f"each host needs one first rank: hosts {order.hosts!s:.80}, first ranks {order.first_rank!s:.80}"
    firsts = sorted(order.first_rank)
    overlap = any(second - first < order.per_host for first, second in itertools.pairwise(firsts))
    if overlap or firsts[0] < 0 or firsts[-1] + order.per_host > order.num_ranks:
        return f"first ranks {order.first_rank!s:.80} do not fit {order.per_host} procs each, of {order.num_ranks}"
    if order.ranks and not all(order.ranks_on(host) for host in order.hosts):
        return f"a host has none of the ranks {order.ranks!s:.80} to start"
    if order.ranks and order.mpi:
        return "procs for MPI start together, as the tasks of one step"
    return ""


def _problem_of_settings(order: SpawnProcs) -> str:
    if not 0 < order.deadline_s <= _MAX_DEADLINE_S:
        return f"procs cannot be ready within {order.deadline_s:g} s"
    if not 0 <= order.umask <= 0o777:
        return f"umask {order.umask:o} is out of range"
    if order.gpu_visible not in ("own-first", "own", "all"):
        return f"gpu_visible is {order.gpu_visible!r:.80}"
    if order.bind not in ("auto", "none", "given"):
        return f"bind is {order.bind!r:.80}"
    for name in (*order.environment, *order.unset):
        if not name or "=" in name:
            return f"no variable is called {name!r:.80}"
    texts = (*order.environment, *order.environment.values(), *order.unset, *order.sys_path, order.cwd, order.python)
    for text in texts:
        if not is_word(text):
            return f"no variable or path can be {text!r:.80}"
    return ""
