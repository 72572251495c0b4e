"""The answer to a question that an engine does not answer."""

from __future__ import annotations

from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import AskSql, Rows, SqlAnswer
from monarch_hpc.wire.control.scribe import AskEngine, MergeParts

__all__ = ["EngineQuestion", "late", "unanswered"]

EngineQuestion = AskEngine | MergeParts | AskSql
"""The messages that an engine answers."""


def unanswered(question: EngineQuestion, problem: str) -> Message:
    """Return the answer without rows; of a part of a question, only that it is missing is passed on.

    Args:
        problem: why, in words.
    """
    if isinstance(question, AskSql):
        return SqlAnswer(question.ticket, problem=problem)
    return Rows(question.ticket, [], [], [])


def late(question: EngineQuestion) -> str:
    """Return why a question without an answer in time has none."""
    return f"the query is not answered within {question.timeout_s:g} s: ask for fewer rows, or give it more time"
