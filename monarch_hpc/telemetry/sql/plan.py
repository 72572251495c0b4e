"""The way in which hosts and the engine of the head's host answer a question together."""

from __future__ import annotations

import re

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.pieces import QueryPiece, sql_tables

__all__ = ["MAX_ROWS", "PARTIAL", "QueryPlan", "is_lasting", "tables_of"]

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_VOLATILE = re.compile("now|current|today|random|uuid", re.IGNORECASE)
"""Words of questions whose plans hold for the moment only: their optimizer has put the time in."""

PARTIAL = "partial"
"""The name of a piece in the texts that combine it."""

MAX_ROWS = 1_000_000
"""Limit on the rows of one result of a host, or of hosts together: of numbers they take some 10 MB."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A question as hosts and the engine of the head's host answer it together.

    Args:
        rule: how it was split: `partial` aggregates; `home`, groups that are on one host each; `rows` that are chosen
            or sorted; `lookup`, groups of rows that meet the same rows of tables of the head; or `pull`, the columns
            and rows of tables that the whole question then is about.
        final: the text whose answer is the question's: about `PARTIAL`, with `lookup` about other tables, too, or with
            `pull` about the tables themselves.
        by_host: whether it holds only if all rows of a host are in one part, because hosts group or join them.
    """

    rule: str
    pieces: list[QueryPiece]
    final: str
    by_host: bool = False


def tables_of(sql: str) -> list[str]:
    """Return the tables that a question may be about."""
    words = {word.lower() for word in _NAMES.findall(sql)}
    return [name for name in sql_tables() if name in words]


def is_lasting(sql: str) -> bool:
    """Whether the plan of a question holds for later, too."""
    return _VOLATILE.search(sql) is None
