"""The way in which the hosts and the asking process answer a question together."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.pieces import QueryPiece

__all__ = ["PARTIAL", "QueryPlan"]

PARTIAL = "partial"
"""The name of a piece in the texts that combine it."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A question as the hosts and the asking process answer it together.

    Args:
        rule: how it was split: `partial` aggregates; `home`, groups that are on one host each; `rows` that are chosen
            or sorted; or `pull`, the columns and rows of tables that the whole question then is about.
        final: the text whose answer is the question's: about `PARTIAL`, or with `pull`, about the tables themselves.
    """

    rule: str
    pieces: Sequence[QueryPiece]
    final: str
