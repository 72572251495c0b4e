"""The schema of a table: a dataclass whose fields are the columns, each annotated with its type and its meaning.

Rows travel as text, which only the asking process reads: agents that combine answers neither parse nor check them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import build

__all__ = ["MAX_ROWS", "Column", "Table"]

R = TypeVar("R")

_SCALARS = (bool, int, float, str)

MAX_ROWS = 10_000
"""Upper bound on the rows of the past in one process's answer: an agent makes them between its other work, in a quarter
of a second on an idle machine."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        kind: the type of its values: a plain one, or a dataclass.
        meaning: what its values say, with their unit.
    """

    name: str
    kind: type
    meaning: str


class Table(Generic[R]):
    """A table.

    Args:
        row: a dataclass, each of whose fields is ``Annotated[TYPE, MEANING]``.
        history: whether its rows are records of the past, the latest first, of which an answer has as many as fit.
        odd: columns of floats that may be infinite or not a number, as programs log them.

    Attributes:
        about: what its rows are.
    """

    def __init__(
        self, name: str, row: type[R], about: str, *, history: bool = False, odd: Collection[str] = ()
    ) -> None:
        self.name = name
        self.about = about
        self.history = history
        self._row = row
        self._odd = odd

    @functools.cached_property  # each process defines all tables, and reads or answers few
    def columns(self) -> tuple[Column, ...]:
        """Its columns."""
        hints = typing.get_type_hints(self._row, include_extras=True)
        return tuple(Column(name, *typing.get_args(hint)) for name, hint in hints.items())

    def problem_of(self, where: Mapping[str, object]) -> str:
        """Return why rows cannot be chosen by *where*, see `render`; empty if they can."""
        kinds = {one.name: one.kind for one in self.columns if one.kind in _SCALARS}
        for name, value in where.items():
            kind = kinds.get(name)
            chosen = _least(value) is not None if kind is float else kind is int and _some(value) is not None
            if type(value) is not kind and not chosen:
                known = ", ".join(f"{one} ({kinds[one].__name__})" for one in kinds)
                return f"rows of {self.name} cannot be chosen by {name:.80} = {value!r:.80}; they can by: {known}"
        return ""

    def chooses(self, row: object, where: Mapping[str, object]) -> bool:
        """Whether *where*, see `render`, leaves a row in; of the columns that *row* has, which may be the first few."""
        return all(_matches(getattr(row, name), value) for name, value in where.items() if hasattr(row, name))

    def render(self, rows: Iterable[R], where: Mapping[str, object]) -> str:
        """Return *rows* as text.

        Args:
            where: values by column; other rows are left out. For a float, ``[">=", NUMBER]`` is a lower bound; for an
                int, a list of numbers stands for any of them.
        """
        return self.fit(rows, where, None)[0]

    def fit(
        self, rows: Iterable[R], where: Mapping[str, object], max_bytes: int | None, parts: Collection[str] = ()
    ) -> tuple[str, bool]:
        """Return as many of *rows* as fit into *max_bytes*, `MAX_ROWS` at most, as text, and whether some are missing.

        Args:
            where: as for `render`.
            max_bytes: None for all rows.
            parts: see `wire.control.questions.Ask`.
        """
        texts: list[str] = []
        num_bytes = 2
        for row in rows:
            if self.chooses(row, where):
                text = _encode([_plain(getattr(row, one.name)) for one in self.columns])
                num_bytes += len(text) + 1
                if max_bytes is not None and (num_bytes > max_bytes or len(texts) == MAX_ROWS):
                    return f"[{','.join(texts)}]", True
                texts.append(text)
        return f"[{','.join(texts)}]", False

    def read(self, text: str) -> list[R]:
        """Return the rows that `render` made *text* of.

        Raises:
            FrameError: it is not that of a table with these columns.
        """
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"rows of {self.name} are not JSON: {error}") from error
        if not isinstance(rows, list):
            raise FrameError(f"rows of {self.name} are not a list")
        return [self._read_row(row) for row in rows]

    def _read_row(self, values: object) -> R:
        if not isinstance(values, list) or len(values) != len(self.columns):
            raise FrameError(f"a row of {self.name} does not have {len(self.columns)} columns: {values!r:.200}")
        document = {one.name: value for one, value in zip(self.columns, values, strict=True)}
        odd = {name: document[name] for name in self._odd if _is_odd(document[name])}
        row = build(self._row, {**document, **dict.fromkeys(odd, 0.0)} if odd else document, self.name)
        assert isinstance(row, self._row)
        return dataclasses.replace(row, **odd) if odd else row  # type: ignore[type-var]  # a dataclass, as all rows


def _least(value: object) -> float | None:
    """The bound in ``[">=", NUMBER]``; None for anything else."""
    if isinstance(value, list) and len(value) == 2 and value[0] == ">=" and type(value[1]) in (int, float):
        return float(value[1])
    return None


def _some(value: object) -> list[int] | None:
    """A list of numbers; None for anything else."""
    return value if isinstance(value, list) and value and all(type(one) is int for one in value) else None


def _matches(value: object, wanted: object) -> bool:
    some = _some(wanted)
    if some is not None:
        return value in some
    least = _least(wanted)
    return value == wanted if least is None else isinstance(value, float) and value >= least


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: object) -> object:
    if type(value) not in _SCALARS and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
