"""Rows of a table, asked of all processes of an allocation through its head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from monarch_hpc.attach.head.client import HeadClient, ask
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.questions import Ask, LastText, Rows
from monarch_hpc.wire.tables.schema import Table

__all__ = ["TableAnswer", "query_portions", "query_rows"]

R = TypeVar("R")

_DIAL_S = 4.0
"""Beyond the head's own timeout, how long connecting to it may take: the relay needs a second and an srun."""


@dataclass(frozen=True, slots=True)
class TableAnswer(Generic[R]):
    """The rows of all processes of an allocation that answered; see `wire.control.questions.Rows`.

    Attributes:
        cut: processes of whose rows only the latest are there, in words.
    """

    rows: list[R]
    missing: list[str]
    left_out: list[str]
    cut: list[str]


def query_rows(
    head: Path | HeadClient,
    table: Table[R],
    timeout_s: float,
    where: Mapping[str, object] | None = None,
    parts: Iterable[str] = (),
) -> TableAnswer[R] | None:
    """Request a table's rows of every process of the allocation; None if the head cannot be reached in time.

    Args:
        timeout_s: how long the head waits for hosts and programs; the answer names the late ones.
        where: values by column: other rows are not wanted.
        parts: the parts of rows that are wanted, see `Ask`.

    Raises:
        FrameError: a process answered with something else than rows of *table*.
    """
    answer = query_portions(head, table.name, timeout_s, where, parts=parts)
    if answer is None:
        return None
    rows = [row for portion in answer.portions for row in table.read(portion.rows)]
    return TableAnswer(rows, answer.missing, answer.left_out, [one.source for one in answer.portions if one.cut])


def query_portions(
    head: Path | HeadClient,
    table: str,
    timeout_s: float,
    where: Mapping[str, object] | None = None,
    pieces: str = "",
    parts: Iterable[str] = (),
    last: LastText | None = None,
) -> Rows | None:
    """Return the answer for `query_rows` as it came, with rows as text; None if the head cannot be reached in time.

    Args:
        pieces: a question in SQL that hosts answer, see `wire.tables.pieces`.
        parts: the parts of rows that are wanted, see `Ask`.
        last: what the head runs on the results of all hosts; it has the same time.
    """
    lasts = [] if last is None else [last]
    question = Ask(0, table, dict(where or {}), timeout_s, pieces=pieces, parts=[*parts], last=lasts)
    answer, _, _ = ask(head, question, Rows, timeout_s * (1 + len(lasts)) + _DIAL_S)
    return answer if isinstance(answer, Rows) else None
