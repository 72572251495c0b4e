"""The questions in SQL that ship as files: one each, whose first line says what it asks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from monarch_hpc.core.errors import QueryError

__all__ = ["question", "shipped_questions"]

_FOLDER = Path(__file__).parent / "questions"


@cache
def shipped_questions() -> dict[str, str]:
    """Return what each question asks, by its name."""
    return {
        path.stem: path.read_text().partition("\n")[0].removeprefix("-- ") for path in sorted(_FOLDER.glob("*.sql"))
    }


def question(name: str) -> str:
    """Return the SQL of a question, for `telemetry.query`; `monarch-hpc query --list` shows their names.

    Raises:
        QueryError: there is no such question.
    """
    if name not in shipped_questions():
        raise QueryError(f"there is no question {name!r}; there are: {', '.join(shipped_questions())}")
    return (_FOLDER / f"{name}.sql").read_text()
