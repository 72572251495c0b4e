"""Many entries of one kind as columns, which travel and are checked without an object for each entry. Pure.

A block is a list: the number of entries, and then a column for each field of their class. A column is a list of values,
or one value that all entries have; the first column is always a list, so that no short text stands for many entries.
A list of numbers is one text, which costs nothing until somebody wants the numbers.
"""

from __future__ import annotations

import math
import re
import typing
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, Generic, NoReturn, TypeVar

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
        self._kinds = _fields(cls)
        self._places = {name: place for place, name in enumerate(self._kinds, 1)}
        self._numbers = [place for place, kind in enumerate(self._kinds.values()) if kind == _NUMBERS]
        self._columns: dict[str, list[Any]] = {}
        self._unchecked = set(self._kinds)
        self._blocks: list[Block] = [block for block in blocks if self._has_entries(block)]  # type: ignore[misc]
        self._turned = list(zip(*self._blocks, strict=True)) or [()] * (1 + len(self._kinds))
        self._counts: tuple[int, ...] = self._turned[0]
        self._starts = starts_of(self._counts)

    def _has_entries(self, block: Any) -> bool:
        if type(block) is not list or len(block) != 1 + len(self._kinds):
            raise FrameError(f"{self._what} are not {len(self._kinds)} columns: {block!s:.80}")
        num, first = block[0], block[1]
        if type(first) is not list or type(num) is not int or len(first) != num:
            raise FrameError(f"{self._what} are not {num!s:.80} entries: {first!s:.80}")
        return num > 0

    def __len__(self) -> int:
        return self._starts[-1]

    def place(self, name: str) -> int:
        """Where the column of a field is in a block."""
        return self._places[name]

    def column(self, name: str) -> list[Any]:
        """The values of a field, of all entries; of lists of numbers, their texts."""
        column = self._columns.get(name)
        if column is None:
            self._check((name,))
            parts = self._turned[self._places[name]]
            if list in map(type, parts):
                column = list(chain.from_iterable(map(_values, parts, self._counts)))
            else:
                column = list(spread(parts, self._counts))
            self._columns[name] = column
        return column

    def make(self, start: int, stop: int) -> list[T]:
        """Return some of the entries."""
        if self._unchecked:
            self.check()
        found = []
        at = bisect_right(self._starts, start) - 1
        while start < min(stop, self._starts[-1]):
            block, place = self._blocks[at], start - self._starts[at]
            values = [column[place] if type(column) is list else column for column in block[1:]]
            for number in self._numbers:
                values[number] = numbers_of(values[number])
            found.append(self._cls(*values))
            start += 1
            at += start == self._starts[at + 1]
        return found

    def check(self) -> None:
        """Look at all columns, so that no value is found to be wrong later."""
        self._check(tuple(self._kinds))

    def _check(self, names: Sequence[str]) -> None:
        """Check that columns have the right lengths and types; those of one type at once, since there are many."""
        found: dict[Any, list[Any]] = {}
        for name in names:
            if name not in self._unchecked:
                continue
            values = found.setdefault(self._kinds[name], [])
            parts = self._turned[self._places[name]]
            if list not in map(type, parts):
                values += parts
                continue
            lists = list(map(_values, parts, self._counts))
            lengths = tuple(map(len, lists))
            if lengths != self._counts:
                wrong = next(place for place, num in enumerate(self._counts) if lengths[place] != num)
                raise FrameError(f"{self._what}.{name}: {lengths[wrong]} values of {self._counts[wrong]} entries")
            values += chain.from_iterable(lists)
        if not all(_CHECKS[kind](values) for kind, values in found.items()):
            self._raise(names)
        self._unchecked.difference_update(names)

    def _raise(self, names: Iterable[str]) -> NoReturn:
        """Say which value is of another type than it should."""
        for name in names:
            kind = self._kinds[name]
            for value in chain.from_iterable(map(_values, self._turned[self._places[name]], repeat(1))):
                if not _CHECKS[kind]([value]):
                    raise FrameError(f"{self._what}.{name}: {value!r:.80} is not of type {kind}")
        raise AssertionError(names)


def _values(part: Any, num: int) -> list[Any]:
    return part if type(part) is list else [part] * num


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
