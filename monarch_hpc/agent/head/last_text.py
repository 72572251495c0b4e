"""The last text of a question in SQL, as the head has it run on the results of all hosts. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.control.questions import Rows, SqlAnswer
from monarch_hpc.wire.tables.pieces import AnswerPart, parse_part, ranks_of

__all__ = ["given_results", "whole_parts", "with_answer"]


def whole_parts(rows: Rows) -> list[AnswerPart]:
    """Return the parts of an answer; none if one is missing, has rows or not all of its own, or is another thing."""
    try:
        parts = [parse_part(portion.rows) for portion in rows.portions]
    except FrameError:
        return []
    is_whole = all(part.results and not part.rows and not part.cut for part in parts)
    return parts if is_whole and not rows.missing and not rows.left_out else []


def given_results(given: str, parts: Sequence[AnswerPart], names: Mapping[int, str]) -> str:
    """Return what an engine is given for the last text, with the results of hosts.

    Args:
        names: those of hosts, by rank.
    """
    ranks = ranks_of(parts)
    document = json.loads(given)
    document["parts"] = [part.results for part in parts]
    document["known"] = {place: {str(rank): names.get(rank, "") for rank in ranks} for place in document["kept"]}
    return json.dumps(document, separators=(",", ":"))


def with_answer(rows: Rows, parts: Sequence[AnswerPart], answer: SqlAnswer) -> Rows:
    """Return the answer of hosts with that of the last text, which was made of their results."""
    portions = [
        replace(portion, rows=replace(part, results="").render())
        for portion, part in zip(rows.portions, parts, strict=True)
    ]
    return replace(rows, portions=portions, finished=answer.body, problem=answer.problem)
