"""Many entries of one kind as columns, which travel and are checked without an object for each entry. Pure.

A block is a list: the number of entries, and then a column for each field of their class. A column is a list of values,
or one value that all entries have; the first column is always a list, so that no short text stands for many entries.
A list of numbers is one text, which costs nothing until somebody wants the numbers.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, Generic, TypeVar

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import MAX_BITS

__all__ = ["Block", "Entries", "numbers_of", "render_block", "spread", "starts_of"]

T = TypeVar("T")

Block = list[Any]

_NUMBERS = list[int]
_TEXT = re.compile(r"(-?[0-9]{1,20}( -?[0-9]{1,20})*)?")
"""A number of 64 bits has twenty digits at most."""


_FIELDS: dict[type, dict[str, Any]] = {}


def _fields(cls: type) -> dict[str, Any]:
    """The fields of a class that are columns, with their types."""
    if cls not in _FIELDS:
        _FIELDS[cls] = {name: kind for name, kind in typing.get_type_hints(cls).items() if kind in _CHECKS}
    return _FIELDS[cls]


def render_block(cls: type, entries: Sequence[object]) -> Block:
    """Return the block of some entries of a class whose fields are plain values or lists of numbers."""
    block: Block = [len(entries)]
    for name, kind in _fields(cls).items():
        column = [getattr(entry, name) for entry in entries]
        if kind == _NUMBERS:
            column = [" ".join(map(str, numbers)) for numbers in column]
        is_one = len(block) > 1 and column and column.count(column[0]) == len(column)
        block.append(column[0] if is_one else column)
    return block


class Entries(Generic[T]):
    """The entries of some blocks, one after the other.

    Args:
        what: what they are, for errors.

    Raises:
        FrameError: a block has another shape than blocks of *cls*. Values are checked as a column is looked at.
    """

    def __init__(self, cls: type[T], blocks: Iterable[object], what: str) -> None:
        self._cls = cls
        self._what = what
        self._places = {name: place for place, name in enumerate(_fields(cls), 1)}
        self._lists = [place for place, kind in enumerate(_fields(cls).values()) if kind == _NUMBERS]
        self._columns: dict[str, list[Any]] = {}
        self._all: list[list[Any]] | None = None
        self._blocks: list[Block] = []
        self._num = 0
        num_columns = len(self._places)
        for block in blocks:
            if type(block) is not list or len(block) != num_columns + 1:
                raise FrameError(f"{what} are not {num_columns} columns: {block!s:.80}")
            num, first = block[0], block[1]
            if type(first) is not list or type(num) is not int or len(first) != num:
                raise FrameError(f"{what} are not {num!s:.80} entries: {first!s:.80}")
            if num:
                self._blocks.append(block)
                self._num += num

    def __len__(self) -> int:
        return self._num

    def place(self, name: str) -> int:
        """Where the column of a field is in a block."""
        return self._places[name]

    def column(self, name: str) -> list[Any]:
        """The values of a field, of all entries; of lists of numbers, their texts."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._read(name)
        return column

    def _read(self, name: str) -> list[Any]:
        place, kind = self._places[name], _fields(self._cls)[name]
        column: list[Any] = []
        alike: list[Any] = []
        for block in self._blocks:
            values = block[place]
            if type(values) is not list:
                alike.append(values)
                values = [values] * block[0]
            elif len(values) != block[0]:
                raise FrameError(f"{self._what}.{name}: {len(values)} values of {block[0]} entries")
            column += values
        if not _CHECKS[kind](alike if len(alike) == len(self._blocks) else column):
            wrong = next((one for one in column if not _CHECKS[kind]([one])), None)
            raise FrameError(f"{self._what}.{name}: {wrong!r:.80} is not of type {kind}")
        return column

    def make(self, start: int, stop: int) -> list[T]:
        """Return some of the entries."""
        if self._all is None:
            self._all = [self.column(name) for name in self._places]
        columns = [column[start:stop] for column in self._all]
        for place in self._lists:
            columns[place] = [numbers_of(text) for text in columns[place]]
        return [self._cls(*values) for values in zip(*columns, strict=True)]

    def check(self) -> None:
        """Look at all columns, so that no value is found to be wrong later."""
        for name in self._places:
            self.column(name)


def numbers_of(text: str) -> list[int]:
    """The numbers in a text of a column."""
    return [int(word) for word in text.split()]


def starts_of(counts: Sequence[int]) -> list[int]:
    """Where the entries begin that belong to others, each of which has so many; and where the last ones end."""
    return [0, *accumulate(counts)]


def spread(values: Iterable[T], counts: Iterable[int]) -> Iterable[T]:
    """Each of some values as often as its entries are."""
    return chain.from_iterable(map(repeat, values, counts))


def _are_ints(values: Sequence[Any]) -> bool:
    if not values:
        return True
    if set(map(type, values)) != {int}:
        return False
    return max(max(values).bit_length(), min(values).bit_length()) <= MAX_BITS  # type: ignore[no-any-return]


def _are_floats(values: Sequence[Any]) -> bool:
    try:
        return {float, int}.issuperset(map(type, values)) and all(map(math.isfinite, values))
    except OverflowError:
        return False


def _are_numbers(values: Sequence[Any]) -> bool:
    return {str}.issuperset(map(type, values)) and None not in map(_TEXT.fullmatch, values)


def _are(kind: type) -> Callable[[Sequence[Any]], bool]:
    return lambda values: {kind}.issuperset(map(type, values))


_CHECKS: dict[Any, Callable[[Sequence[Any]], bool]] = {
    bool: _are(bool),
    int: _are_ints,
    float: _are_floats,
    str: _are(str),
    _NUMBERS: _are_numbers,
}
