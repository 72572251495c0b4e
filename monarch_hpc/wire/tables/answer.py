"""Answers to questions: the rows of one process, and the combination of several processes' rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.questions import Ask, Portion, Rows
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.pieces import AnswerPart, name_cut, parse_question

__all__ = ["Answer", "Sources", "answer"]

Sources = Mapping[str, Callable[[], Iterable[object]]]
"""The tables that a process answers questions about: for each that it has rows of, a function that reads them."""


_PROGRAM_BYTES = 1 << 20
"""Size of a program's part of an answer: there are few programs, and they share the answer with the hosts."""


def answer(question: Ask, source: str, sources: Sources, max_bytes: int = _PROGRAM_BYTES) -> Portion:
    """Return the rows of one process; none of a table that it has no rows of. It does not run SQL.

    Args:
        source: describes this process.
        max_bytes: limit on rows of the past, of which the latest are taken.
    """
    if not question.pieces:
        rows, is_cut = _fit(question.table, sources, question.where, max_bytes, question.parts)
        return Portion(source, rows, cut=is_cut)
    asked = parse_question(question.pieces)
    found: dict[str, str] = {}
    cut: list[str] = []
    for name in asked.tables:
        where: dict[str, object] = {"t": [">=", asked.since_s]} if asked.since_s and TABLES[name].history else {}
        found[name], is_cut = _fit(name, sources, where, max_bytes // len(asked.tables))
        cut += [name] if is_cut else []
    return Portion(source, AnswerPart(rows=found, cut=name_cut(source, cut)).render(), cut=bool(cut))


def _fit(
    name: str, sources: Sources, where: Mapping[str, object], max_bytes: int, parts: Collection[str] = ()
) -> tuple[str, bool]:
    read, table = sources.get(name, tuple), TABLES[name]
    return table.fit(read(), where, max_bytes if table.history else None, parts)


@dataclass(slots=True)
class Answer:
    """An answer as it is put together.

    Args:
        max_bytes: limit on the size of its rows, see `telemetry.max_answer_bytes`.
    """

    max_bytes: int
    portions: list[Portion] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _num_bytes: int = 0

    def add(self, portions: Iterable[Portion]) -> None:
        """Add rows; those of processes for which there is no room are left out, and the processes named."""
        for portion in portions:
            num_bytes = self._num_bytes + len(portion.rows)
            if num_bytes > self.max_bytes:
                self.left_out.append(portion.source)
                continue
            self._num_bytes = num_bytes
            self.portions.append(portion)

    def combine(self, part: Rows) -> None:
        """Add another answer, of other processes."""
        self.add(part.portions)
        self.missing += part.missing
        self.left_out += part.left_out

    def rows(self, ticket: int) -> Rows:
        """Return the answer as a message."""
        return Rows(ticket, self.portions, self.missing, self.left_out)
