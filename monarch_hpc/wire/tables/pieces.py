"""Questions whose rows stay on their hosts: the texts in SQL that hosts run, and how results are combined. Pure."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import build
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.history import HANDLED, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.wire.tables.samples import SAMPLES
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "ON_HOSTS",
    "RECORD_TABLES",
    "AnswerPart",
    "HostQuestion",
    "QueryPiece",
    "name_cut",
    "parse_part",
    "parse_question",
    "ranks_of",
    "spans_of",
    "sql_tables",
]

_T = TypeVar("_T")

_SCALARS = (bool, int, float, str)

RECORD_TABLES = frozenset(table.name for table in (HANDLED, METRICS, SENDS, SPANS, TRANSFERS))
"""Tables of the records that processes write."""

ON_HOSTS = RECORD_TABLES | SAMPLES.keys()
"""Tables whose rows stay on their host, where the text for hosts is run; rows of others are few, and are collected."""


@functools.cache  # each process loads this module, and few ask
def sql_tables() -> Mapping[str, Table[Any]]:
    """Return the tables that questions can be about: those whose columns are plain values."""
    return {name: table for name, table in TABLES.items() if all(one.kind in _SCALARS for one in table.columns)}


@dataclass(frozen=True, slots=True)
class QueryPiece:
    """One result of each host.

    Args:
        tables: those that it is made of.
        host: the text that makes it.
        merge: the text that combines those of several hosts, which are the table ``partial``; empty if they are put
            behind each other. Its result has the same columns.
        is_divisible: whether *merge* also combines results of parts of the rows of a host.
    """

    tables: list[str]
    host: str
    merge: str = ""
    is_divisible: bool = False


@dataclass(frozen=True, slots=True)
class HostQuestion:
    """The part of a question that hosts answer.

    Args:
        since_s: Unix time of the oldest row of the past that is of interest; 0 for all.
    """

    pieces: list[QueryPiece] = field(default_factory=list)
    since_s: float = 0.0

    @property
    def tables(self) -> list[str]:
        """The tables that it is about."""
        return sorted({name for piece in self.pieces for name in piece.tables})

    def render(self) -> str:
        """The question as text, for a message."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def parse_question(text: str) -> HostQuestion:
    """Return the question that `HostQuestion.render` made *text* of.

    Raises:
        FrameError: it is not one.
    """
    question = _parse(HostQuestion, text, "a question to hosts")
    if question is None or not ON_HOSTS.issuperset(question.tables):
        raise FrameError(f"a question to hosts is about {', '.join(sorted(ON_HOSTS))}, not {text:.80}")
    return question


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of the answer to such a question: of one process, or of hosts whose results have been combined.

    Args:
        results: the result of each piece, see `telemetry.sql.results`; empty for a process without an engine.
        rows: the rows of such a process, as text by table.
        ranks: the hosts that it is of, as ranges of ranks.
        cut: hosts in it of whose rows only some fitted, with the tables of these rows.
        dropped: records that were overwritten in the memory of processes, and are not in files.
    """

    results: str = ""
    rows: dict[str, str] = field(default_factory=dict)
    ranks: list[list[int]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    dropped: int = 0

    def render(self) -> str:
        """The part as text, for a message."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def parse_part(text: str) -> AnswerPart:
    """Return the part that `AnswerPart.render` made *text* of.

    Raises:
        FrameError: it is not one.
    """
    part = _parse(AnswerPart, text, "a part of an answer")
    if part is None or any(len(span) != 2 for span in part.ranks):
        raise FrameError(f"{text:.80} is not a part of an answer")
    return part


def name_cut(source: str, tables: Iterable[str]) -> list[str]:
    """Return who has sent only some rows, and of which tables; nobody without tables."""
    names = ", ".join(dict.fromkeys(tables))
    return [f"{source} ({names})"] if names else []


def spans_of(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as ranges, each with its first and the one after its last."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def ranks_of(parts: Iterable[AnswerPart]) -> list[int]:
    """Return the ranks of the hosts that parts of an answer are of; see `spans_of`."""
    return [rank for part in parts for first, last in part.ranks for rank in range(first, last)]


def _parse(cls: type[_T], text: str, what: str) -> _T | None:
    """Build what *text* describes; None if it describes no such thing."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"{what} is not JSON: {error}") from error
    found = build(cls, document, what) if isinstance(document, dict) else None
    return found if isinstance(found, cls) else None
