"""Strided sets of ranks, with and without names, as programs written for Monarch use them for tensors and meshes."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from monarch_hpc.core.arguments import check_number, check_texts
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Extent, Region

__all__ = ["NDSlice", "Shape", "Slice"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class NDSlice:
    """The numbers ``offset + sum(c[i] * strides[i])``, in the order of the coordinates c, the last one fastest.

    Args:
        offset: the first number.
        sizes: the size of each dimension.
        strides: the distance between neighbours in each dimension.

    Raises:
        TypeError: an argument is not a whole number, or not a list of them.
        ValueError: a number is negative, a size is below 1, or there are more sizes than strides or fewer.
    """

    _region: Region

    def __init__(self, *, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} sizes for {len(strides)} strides")
        steps = tuple(check_number("a stride", stride, least=1) for stride in strides)
        region = Region(_unnamed(sizes), check_number("offset", offset, least=0), steps)
        object.__setattr__(self, "_region", region)

    @classmethod
    def new_row_major(cls, sizes: Sequence[int]) -> NDSlice:
        """The numbers from 0, row by row."""
        return _of(Region.whole(_unnamed(sizes)))

    @classmethod
    def from_list(cls, ranks: Sequence[int]) -> list[NDSlice]:
        """Cover *ranks*, in ascending order, by as few one-dimensional slices as runs of equal steps allow.

        Raises:
            TypeError: a rank is not a whole number.
        """
        left = sorted({check_number("a rank", rank, least=0) for rank in ranks})
        found = []
        first = 0
        while first < len(left):
            step = left[first + 1] - left[first] if first + 1 < len(left) else 1
            end = first + 1
            while end < len(left) and left[end] - left[end - 1] == step:
                end += 1
            found.append(cls(offset=left[first], sizes=[end - first], strides=[step]))
            first = end
        return found

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._region.strides)

    @property
    def offset(self) -> int:
        """The first number."""
        return self._region.offset

    @property
    def sizes(self) -> list[int]:
        """The size of each dimension."""
        return self._region.extent.sizes

    @property
    def strides(self) -> list[int]:
        """The distance between neighbours in each dimension."""
        return list(self._region.strides)

    def get(self, index: int) -> int:
        """The number at *index*, counted row by row.

        Raises:
            ValueError: there is no such index.
        """
        if not 0 <= index < len(self):
            raise ValueError(f"index {index} is out of range 0..{len(self) - 1}")
        return self._region.base_rank(index)

    def index(self, value: int) -> int:
        """The index of *value*; the inverse of `get`.

        Raises:
            ValueError: *value* is not in the slice.
        """
        try:
            return self._region.rank_of(value)
        except ValueError:
            raise ValueError(f"value {value} is not in {self}") from None

    def coordinates(self, value: int) -> list[int]:
        """The coordinates of *value*.

        Raises:
            ValueError: *value* is not in the slice.
        """
        return list(self._region.extent.point(self.index(value)).values())

    def nditem(self, coordinates: Sequence[int]) -> int:
        """The number at *coordinates*.

        Raises:
            IndexError: a coordinate is outside its dimension, or there are too many or too few.
        """
        if len(coordinates) != self.ndim or not all(
            0 <= c < size for c, size in zip(coordinates, self.sizes, strict=False)
        ):
            raise IndexError(f"{list(coordinates)} is outside {self}")
        return self.offset + sum(c * stride for c, stride in zip(coordinates, self.strides, strict=True))

    def __len__(self) -> int:
        return len(self._region)

    def __iter__(self) -> Iterator[int]:
        return self._region.base_ranks()

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self.get(place) for place in range(len(self))[index])
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range 0..{len(self) - 1}")
        return self._region.base_rank(index)

    def __repr__(self) -> str:
        return f"Slice {{ offset: {self.offset}, sizes: {self.sizes}, strides: {self.strides} }}"


Slice = NDSlice


def _unnamed(sizes: Sequence[int]) -> Extent:
    """An extent of *sizes*, whose names do not matter."""
    return Extent(tuple(f"d{axis}" for axis in range(len(sizes))), sizes)


def _of(region: Region) -> NDSlice:
    made = NDSlice.__new__(NDSlice)
    object.__setattr__(made, "_region", region)
    return made


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Shape:
    """A set of ranks with named dimensions.

    Args:
        labels: the name of each dimension, outermost first.
        slice: the ranks.

    Raises:
        TypeError: *labels* is not a list of strings.
        ValueError: there are more names than dimensions or fewer, or names repeat.
    """

    region: Region

    def __init__(self, labels: Sequence[str], slice: NDSlice) -> None:
        names = check_texts("labels", labels, "['hosts', 'gpus']")
        if len(names) != slice.ndim:
            raise ValueError(f"{len(names)} labels for {slice.ndim} dimensions")
        object.__setattr__(self, "region", Region(Extent(names, slice.sizes), slice.offset, tuple(slice.strides)))

    @classmethod
    def unity(cls) -> Shape:
        """The shape without dimensions, which has rank 0 alone."""
        return _shape(Region.whole(Extent((), ())))

    @property
    def labels(self) -> list[str]:
        """The name of each dimension."""
        return self.region.extent.labels

    @property
    def extent(self) -> Extent:
        """Names and sizes of the dimensions."""
        return self.region.extent

    @property
    def ndslice(self) -> NDSlice:
        """The ranks, without names."""
        region = self.region
        return _of(Region(_unnamed(region.extent.shape), region.offset, region.strides))

    def ranks(self) -> list[int]:
        """All ranks, row by row."""
        return list(self.region.base_ranks())

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of *rank*, by dimension name.

        Raises:
            ValueError: *rank* is not in the shape.
        """
        return dict(self.extent.point(self.region.rank_of(rank)))

    def at(self, label: str, index: int) -> Shape:
        """Keep one place of a dimension, which is removed.

        Raises:
            ValueError: there is no such dimension, or no such place in it.
        """
        return self._keep({label: index})

    def select(self, label: str, slice: builtins.slice) -> Shape:
        """Keep a part of a dimension.

        Raises:
            ValueError: there is no such dimension, or nothing of it is left.
        """
        return self._keep({label: slice})

    def index(self, **places: int) -> Shape:
        """Keep one place of each named dimension; these dimensions are removed.

        Raises:
            ValueError: there is no such dimension, or no such place in it.
        """
        return self._keep(places)

    def _keep(self, selection: Mapping[str, int | builtins.slice]) -> Shape:
        try:
            return _shape(self.region.slice(**selection))
        except (IndexError, KeyError) as error:
            raise ValueError(error.args[0]) from error

    def __len__(self) -> int:
        return len(self.region)

    def __repr__(self) -> str:
        labels = ", ".join(f'"{label}"' for label in self.labels)
        return f"Shape {{ labels: [{labels}], slice: {self.ndslice} }}"

    def __str__(self) -> str:
        sizes = zip(self.extent.names, self.extent.shape, strict=True)
        return "{" + ",".join(f"{label}={size}" for label, size in sizes) + "}"


def _shape(region: Region) -> Shape:
    made = Shape.__new__(Shape)
    object.__setattr__(made, "region", region)
    return made
