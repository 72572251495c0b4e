"""Many entries of one kind as columns, which travel and are checked without an object for each entry. Pure.

A block is a list: the number of entries, and then a column for each of some fields. A column is a list of values, or
one value that all entries have; the first column is always a list, so that no short text stands for many entries. A
list of numbers is one text, which costs nothing until somebody wants the numbers. Entries have two blocks: one of the
fields that most often stay the same from one answer to the next, so that it need not be read again, and one of others.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, Generic, NoReturn, TypeVar

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import MAX_BITS

__all__ = ["Block", "Columns", "Entries", "Kinds", "divide", "numbers_of", "render_blocks", "spread", "starts_of"]

T = TypeVar("T")

Block = list[Any]
Kinds = Mapping[str, Any]

_NUMBERS = list[int]
_TEXT = re.compile(r"(-?[0-9]{1,20}( -?[0-9]{1,20})*)?")
"""A number of 64 bits has twenty digits at most."""


_FIELDS: dict[type, dict[str, Any]] = {}


def fields_of(cls: type) -> Kinds:
    """The fields of a class that are columns, with their types."""
    if cls not in _FIELDS:
        _FIELDS[cls] = {name: kind for name, kind in typing.get_type_hints(cls).items() if kind in _CHECKS}
    return _FIELDS[cls]


def render_blocks(cls: type, entries: Sequence[object], changing: Collection[str]) -> tuple[Block, Block]:
    """Return the blocks of some entries of a class whose fields are plain values or lists of numbers.

    Args:
        changing: names of the fields that are in the second block.
    """
    lasting, others = divide(cls, changing)
    return _render(lasting, entries), _render(others, entries)


def divide(cls: type, changing: Collection[str]) -> tuple[Kinds, Kinds]:
    """The fields of a class that are columns, with their types, without and with those that are *changing*."""
    kinds = fields_of(cls).items()
    return {one: kind for one, kind in kinds if one not in changing}, {
        one: kind for one, kind in kinds if one in changing
    }


def _render(kinds: Kinds, entries: Sequence[object]) -> Block:
    block: Block = [len(entries)]
    for name, kind in kinds.items():
        column = [getattr(entry, name) for entry in entries]
        if kind == _NUMBERS:
            column = [" ".join(map(str, numbers)) for numbers in column]
        is_one = len(block) > 1 and column and column.count(column[0]) == len(column)
        block.append(column[0] if is_one else column)
    return block


class Entries(Generic[T]):
    """The entries of some blocks, one after the other, of which objects are made as they are looked at.

    Args:
        lasting, changing: their columns.

    Raises:
        FrameError: there are not as many of both in each block.
    """

    def __init__(self, cls: type[T], lasting: Columns, changing: Columns) -> None:
        if lasting.counts != changing.counts:
            raise FrameError(f"{lasting.what} are {lasting.counts!s:.80} entries, and {changing.counts!s:.80}")
        self._cls = cls
        self.lasting = lasting
        self.changing = changing
        kinds = fields_of(cls)
        places = {name: place for place, name in enumerate((*lasting.kinds, *changing.kinds))}
        self._in_order = operator.itemgetter(*(places[name] for name in kinds))
        self._numbers = [place for place, kind in enumerate(kinds.values()) if kind == _NUMBERS]

    def __len__(self) -> int:
        return len(self.lasting)

    def column(self, name: str) -> list[Any]:
        """The values of a field, of all entries; of lists of numbers, their texts."""
        return (self.lasting if name in self.lasting.kinds else self.changing).column(name)

    def make(self, start: int, stop: int) -> list[T]:
        """Return some of the entries."""
        lasting, others, found = self.lasting.rows[start:stop], self.changing.rows[start:stop], []
        for some, more in zip(lasting, others, strict=True):
            values = self._in_order(some + more)
            if self._numbers:
                values = [numbers_of(one) if place in self._numbers else one for place, one in enumerate(values)]
            found.append(self._cls(*values))
        return found

    def check(self) -> None:
        """Look at all columns, so that no value is found to be wrong later."""
        self.lasting.check()
        self.changing.check()


class Columns:
    """The columns of some blocks, one after the other.

    Args:
        kinds: types of the columns by their names.
        what: what the entries are, for errors.

    Attributes:
        counts: the number of entries of each block that has any.
        sizes: the number of entries of each block.

    Raises:
        FrameError: a block has another shape. Values are checked as a column is looked at.
    """

    def __init__(self, kinds: Kinds, blocks: Iterable[object], what: str) -> None:
        self.kinds = kinds
        self.what = what
        self._places = {name: place for place, name in enumerate(kinds, 1)}
        self._columns: dict[str, list[Any]] = {}
        self._unchecked = set(kinds)
        self.sizes: list[int] = []
        filled = [block for block in blocks if self._has_entries(block)]
        self._turned: list[tuple[Any, ...]] = list(zip(*filled, strict=True)) or [()] * (1 + len(kinds))
        self.counts: tuple[int, ...] = self._turned[0]

    def _has_entries(self, block: Any) -> bool:
        if type(block) is not list or len(block) != 1 + len(self.kinds):
            raise FrameError(f"{self.what} are not {len(self.kinds)} columns: {block!s:.80}")
        num, first = block[0], block[1]
        if type(first) is not list or type(num) is not int or len(first) != num:
            raise FrameError(f"{self.what} are not {num!s:.80} entries: {first!s:.80}")
        self.sizes.append(num)
        return num > 0

    def __len__(self) -> int:
        return sum(self.counts)

    def place(self, name: str) -> int:
        """Where a column is in a block."""
        return self._places[name]

    def column(self, name: str) -> list[Any]:
        """The values of a field, of all entries; of lists of numbers, their texts."""
        column = self._columns.get(name)
        if column is None:
            self._check((name,))
            parts = self._turned[self._places[name]]
            if list in map(type, parts):
                column = list(chain.from_iterable(map(_values, parts, self.counts)))
            else:
                column = list(spread(parts, self.counts))
            self._columns[name] = column
        return column

    @functools.cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The values of each entry."""
        self.check()
        return list(zip(*map(self.column, self.kinds), strict=True))

    def check(self) -> None:
        """Look at all columns, so that no value is found to be wrong later."""
        self._check(tuple(self.kinds))

    def _check(self, names: Sequence[str]) -> None:
        """Check that columns have the right lengths and types; those of one type at once, since there are many."""
        found: dict[Any, list[Any]] = {}
        for name in names:
            if name not in self._unchecked:
                continue
            values = found.setdefault(self.kinds[name], [])
            parts = self._turned[self._places[name]]
            if list not in map(type, parts):
                values += parts
                continue
            lists = list(map(_values, parts, self.counts))
            lengths = tuple(map(len, lists))
            if lengths != self.counts:
                wrong = next(place for place, num in enumerate(self.counts) if lengths[place] != num)
                raise FrameError(f"{self.what}.{name}: {lengths[wrong]} values of {self.counts[wrong]} entries")
            values += chain.from_iterable(lists)
        if not all(_CHECKS[kind](values) for kind, values in found.items()):
            self._raise(names)
        self._unchecked.difference_update(names)

    def _raise(self, names: Iterable[str]) -> NoReturn:
        """Say which value is of another type than it should."""
        for name in names:
            kind = self.kinds[name]
            for value in chain.from_iterable(map(_values, self._turned[self._places[name]], repeat(1))):
                if not _CHECKS[kind]([value]):
                    raise FrameError(f"{self.what}.{name}: {value!r:.80} is not of type {kind}")
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
