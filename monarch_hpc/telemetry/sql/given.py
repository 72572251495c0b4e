"""Texts that an engine and the process that asks it exchange about a question in SQL. Pure."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from typing import TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.telemetry.sql.plan import QueryPlan
from monarch_hpc.wire.document import build

__all__ = ["FinishedAnswer", "GivenRows", "TakenQuestion", "parse", "render"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TakenQuestion:
    """A question that an engine has checked.

    Attributes:
        tables: those that it may be about.
        split: how it is split over hosts.
        pulled: how its tables are pulled, if it cannot be split after all.
        plan: how the engine will answer it: the columns and rows that it needs, and what it does with them.
    """

    tables: list[str]
    split: QueryPlan
    pulled: QueryPlan
    plan: str


@dataclass(frozen=True, slots=True)
class GivenRows:
    """What a question is about.

    Args:
        plan: the one of its plans by which hosts were asked.
        rows: rows of live processes by table, each a list of the values of its columns.
        parts: the results of hosts, see `telemetry.sql.results.pack`.
        kept: directories of allocations whose kept rows are joined to the rows.
        known: for each of them, the hosts whose parts have their kept rows, with their names by rank.
        since_s: Unix time of the oldest row of the past that is of interest; 0 for all.
    """

    plan: QueryPlan
    rows: dict[str, list[object]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """The answer to a question.

    Args:
        num_rows: the number of its rows.
        unreadable: files of kept rows that cannot be read.
        columns: names of the columns.
        rows: for ``json``: the rows, of values that JSON has, and others as text.
        data: for ``arrow`` a stream and for ``parquet`` a file, in base64.
    """

    num_rows: int
    unreadable: list[str]
    columns: list[str]
    rows: list[object] = field(default_factory=list)
    data: str = ""


def render(value: TakenQuestion | GivenRows | FinishedAnswer) -> str:
    """Return one of them as text, for a message."""
    return json.dumps(dataclasses.asdict(value), separators=(",", ":"))


def parse(cls: type[_T], text: str) -> _T:
    """Return what `render` made *text* of.

    Raises:
        FrameError: it is something else.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"{cls.__name__} is not JSON: {error}") from error
    found = build(cls, document, cls.__name__) if isinstance(document, dict) else None
    if not isinstance(found, cls):
        raise FrameError(f"{text:.80} is no {cls.__name__}")
    return found
