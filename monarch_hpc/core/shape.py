"""Extents with named dimensions, points in them, and strided views, whose slices copy nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from monarch_hpc.core.arguments import check_number, check_text, check_texts, shown
from monarch_hpc.core.dataclass import dataclass

__all__ = ["Extent", "Point", "Region", "contiguous_strides"]


@dataclass(frozen=True, slots=True, init=False)
class Extent:
    """Names and sizes of the dimensions of a mesh, outermost first.

    An extent with no dimension holds exactly one element.

    Args:
        labels: the name of each dimension.
        sizes: the size of each dimension.

    Raises:
        TypeError: a name is not a string, or a size is not a whole number.
        ValueError: names repeat or are empty, a size is below 1, or there are more of one than of the other.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        if type(labels) is not tuple or any(type(label) is not str for label in labels):
            labels = check_texts("labels", labels, "['hosts', 'gpus']")
        if type(sizes) is not tuple and not isinstance(sizes, Iterable):
            raise TypeError(f"sizes is {shown(sizes)}: give a list with the size of each dimension")
        shape = tuple(sizes)
        if any(type(size) is not int for size in shape):  # NumPy's integers are accepted
            shape = tuple(map(_whole, labels, shape))
        if len(labels) != len(shape):
            raise ValueError(f"{len(labels)} labels for {len(shape)} sizes")
        if len(set(labels)) != len(labels):
            raise ValueError(f"dimension names repeat: {', '.join(labels)}")
        if "" in labels:
            raise ValueError("the name of a dimension is empty: give at least one character")
        for label, size in zip(labels, shape, strict=True):
            if size < 1:
                raise ValueError(f"dimension {label!r} has size {size}; at least 1")
        object.__setattr__(self, "names", tuple(labels))
        object.__setattr__(self, "shape", shape)

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Extent:
        """Make an extent from *sizes*, in the mapping's order."""
        return cls(tuple(sizes), tuple(sizes.values()))

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def labels(self) -> list[str]:
        """Names of the dimensions: a list, as programs written for Monarch compare and extend it."""
        return list(self.names)

    @property
    def sizes(self) -> list[int]:
        """Sizes of the dimensions, in the order of `labels`."""
        return list(self.shape)

    @property
    def nelements(self) -> int:
        """The number of elements."""
        return len(self)

    def keys(self) -> list[str]:
        """Names of the dimensions."""
        return self.labels

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, label: str) -> int:
        self.check_known((label,))
        return self.to_dict()[label]

    def check_known(self, labels: Iterable[str]) -> None:
        """Refuse names that no dimension has.

        Raises:
            KeyError: a name is unknown; the message lists the known ones.
        """
        for label in labels:
            if label not in self.names:
                raise KeyError(f"no dimension {label!r}; there are: {', '.join(self.names) or 'none'}")

    def to_dict(self) -> dict[str, int]:
        """Sizes by name."""
        return dict(zip(self.names, self.shape, strict=True))

    def point(self, rank: int) -> Point:
        """The coordinates of the element at *rank*, counted row by row."""
        return Point(rank, self)

    def __str__(self) -> str:
        return "{" + ", ".join(f"{label}: {size}" for label, size in zip(self.names, self.shape, strict=True)) + "}"

    __repr__ = __str__


class Point(Mapping[str, int]):
    """Coordinates in an extent, by dimension name, and their rank."""

    __slots__ = ("extent", "rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        if type(rank) is not int:
            rank = check_number("rank", rank)
        if not 0 <= rank < len(extent):
            raise IndexError(f"rank {rank} of {len(extent)}")
        self.rank = rank
        self.extent = extent

    def __getitem__(self, label: str) -> int:
        rest = self.rank
        for name, size in zip(reversed(self.extent.names), reversed(self.extent.shape), strict=True):
            rest, coordinate = divmod(rest, size)
            if name == label:
                return coordinate
        raise KeyError(f"no dimension {label!r}; there are: {', '.join(self.extent.names) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent.names)

    def __len__(self) -> int:
        return len(self.extent.names)

    def size(self, label: str) -> int:
        """The size of a dimension of the extent."""
        return self.extent[label]

    def __hash__(self) -> int:
        return hash((self.rank, self.extent))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Point):
            return self.rank == other.rank and self.extent == other.extent
        return dict(self) == other

    def __repr__(self) -> str:
        sizes = zip(self.items(), self.extent.shape, strict=True)
        return "{" + ", ".join(f"{label!r}: {coordinate}/{size}" for (label, coordinate), size in sizes) + "}"

    def __reduce__(self) -> tuple[type[Point], tuple[int, Extent]]:
        return Point, (self.rank, self.extent)


@dataclass(frozen=True, slots=True)
class Region:
    """A view of a mesh: a selection of its *base* ranks, with their order and the names of its dimensions.

    The element with coordinates c has base rank ``offset + sum(c[i] * strides[i])``; or, with *picks*, the one that
    stands there in *picks*.
    """

    extent: Extent
    offset: int
    strides: tuple[int, ...]
    picks: tuple[int, ...] | None = None

    @classmethod
    def whole(cls, extent: Extent) -> Region:
        """The view of all of *extent*, whose ranks become the base ranks."""
        strides = []
        stride = 1
        for size in reversed(extent.shape):
            strides.append(stride)
            stride *= size
        return cls(extent, 0, tuple(reversed(strides)))

    def __len__(self) -> int:
        return len(self.extent)

    def slice(self, **selection: int | slice) -> Region:
        """Keep part of each named dimension: a slice keeps the dimension, a number removes it.

        Raises:
            KeyError: no dimension has that name.
            IndexError: the number is outside the dimension, or the slice is empty.
            TypeError: the selection is neither a slice nor a whole number.
            ValueError: the step of a slice is 0.
        """
        self.extent.check_known(selection)
        offset = self.offset
        labels: list[str] = []
        sizes: list[int] = []
        strides: list[int] = []
        for label, size, stride in zip(self.extent.names, self.extent.shape, self.strides, strict=True):
            chosen = selection.get(label, slice(None))
            if isinstance(chosen, slice):
                kept = range(size)[_whole_slice(label, chosen)]
                if not kept:
                    raise IndexError(f"{label}={chosen.start}:{chosen.stop}:{chosen.step} keeps nothing of {size}")
                offset += kept.start * stride
                labels.append(label)
                sizes.append(len(kept))
                strides.append(stride * kept.step)
            else:
                if type(chosen) is not int:
                    chosen = _whole_place(label, chosen)
                if not -size <= chosen < size:
                    raise IndexError(f"{label}={chosen} is outside 0..{size - 1}")
                offset += (chosen % size) * stride
        return Region(Extent(tuple(labels), tuple(sizes)), offset, tuple(strides), self.picks)

    def pick(self, label: str, places: Sequence[int]) -> Region:
        """Keep the elements with these coordinates in one dimension, in this order.

        Raises:
            KeyError: no dimension has that name.
            IndexError: a coordinate is outside the dimension, or there is none.
        """
        self.extent.check_known((label,))
        if not places or not all(0 <= place < self.extent[label] for place in places):
            raise IndexError(f"{label}={list(places)!s:.80} of {self.extent[label]}")
        sizes = {**self.extent.to_dict(), label: len(places)}
        kept = Extent.of(sizes)
        points = (dict(kept.point(rank)) for rank in range(len(kept)))
        picked = (self.slice(**{**point, label: places[point[label]]}).base_rank(0) for point in points)
        return replace(Region.whole(kept), picks=tuple(picked))

    def split(self, **selection: Sequence[str] | int) -> Region:
        """Split dimensions into several: ``split(hosts=("racks", "hosts"), racks=4)``.

        Args:
            **selection: for a dimension to split, the names that replace it, outermost first; for one of these names,
                its size. For each split dimension one size may be left out; it follows from the others.

        Raises:
            KeyError: no dimension has that name.
            TypeError: a value is neither names nor a size.
            ValueError: the sizes do not multiply to that of the dimension.
        """
        given: dict[str, int] = {}
        names: dict[str, tuple[str, ...]] = {}
        for label, parts in selection.items():
            if isinstance(parts, Iterable):
                names[label] = check_texts(label, parts, "the names of its parts, outermost first")
            else:
                given[label] = check_number(label, parts, least=1)
        self.extent.check_known(names)
        labels: list[str] = []
        sizes: list[int] = []
        strides: list[int] = []
        for label, size, stride in zip(self.extent.names, self.extent.shape, self.strides, strict=True):
            inner = _split(label, size, names.get(label, (label,)), given if label in names else {label: size})
            labels += inner.names
            sizes += inner.shape
            strides += [stride * step for step in Region.whole(inner).strides]
        unused = given.keys() - {part for parts in names.values() for part in parts}
        if unused:
            raise ValueError(f"{sorted(unused)[0]}={given[sorted(unused)[0]]} is the size of no part of a dimension")
        return Region(Extent(tuple(labels), tuple(sizes)), self.offset, tuple(strides), self.picks)

    def flatten(self, label: str) -> Region:
        """Merge all dimensions into one, row by row.

        Raises:
            TypeError: the name is not a string.
            ValueError: the steps between neighbours differ, as after a slice with gaps: no strided view can do that.
        """
        check_text("name", label)
        axes = [(size, stride) for size, stride in zip(self.extent.shape, self.strides, strict=True) if size > 1]
        for (_, outer), (size, inner) in itertools.pairwise(axes):
            if outer != inner * size:
                raise ValueError(f"a slice left gaps in {self.extent}: flatten first, and slice after that")
        return Region(Extent((label,), (len(self),)), self.offset, (axes[-1][1] if axes else 1,), self.picks)

    def rename(self, **labels: str) -> Region:
        """Rename dimensions, each as ``old="new"``.

        Raises:
            KeyError: no dimension has that name.
            TypeError: a name is not a string.
            ValueError: two dimensions would have one name.
        """
        self.extent.check_known(labels)
        for label, other in labels.items():
            check_text(label, other)
        renamed = tuple(labels.get(label, label) for label in self.extent.names)
        return Region(Extent(renamed, self.extent.shape), self.offset, self.strides, self.picks)

    def base_rank(self, rank: int) -> int:
        """The base rank of the element at *rank* of this view."""
        if not 0 <= rank < len(self.extent):
            raise IndexError(f"rank {rank} of {len(self.extent)}")
        base = self.offset
        for size, stride in zip(reversed(self.extent.shape), reversed(self.strides), strict=True):
            rank, coordinate = divmod(rank, size)
            base += coordinate * stride
        return base if self.picks is None else self.picks[base]

    def base_ranks(self) -> Iterator[int]:
        """Base ranks of all elements, in the order of this view."""
        return (self.base_rank(rank) for rank in range(len(self.extent)))

    def rank_of(self, base_rank: int) -> int:
        """The rank in this view of the element with *base_rank*.

        Raises:
            ValueError: the view does not contain it.
        """
        place = base_rank
        if self.picks is not None:
            if base_rank not in self.picks:
                raise ValueError(f"base rank {base_rank} is not in this view")
            place = self.picks.index(base_rank)
        rest = place - self.offset
        # A reversed dimension (negative stride) is read from its other end.
        rest -= sum(
            stride * (size - 1) for size, stride in zip(self.extent.shape, self.strides, strict=True) if stride < 0
        )
        coordinates = [0] * len(self.strides)
        # Largest stride first: the remainder of a dimension is below its own stride. A dimension of size 1
        # carries no information, and its stride may be larger than those of the dimensions outside it.
        axes = [axis for axis, size in enumerate(self.extent.shape) if size > 1]
        for axis in sorted(axes, key=lambda axis: -abs(self.strides[axis])):
            size, stride = self.extent.shape[axis], self.strides[axis]
            coordinate, rest = divmod(rest, abs(stride))
            if not 0 <= coordinate < size:
                raise ValueError(f"base rank {base_rank} is not in this view")
            coordinates[axis] = coordinate if stride > 0 else size - 1 - coordinate
        if rest:
            raise ValueError(f"base rank {base_rank} is not in this view")
        rank = 0
        for coordinate, size in zip(coordinates, self.extent.shape, strict=True):
            rank = rank * size + coordinate
        return rank


def _whole(label: str, size: object) -> int:
    return check_number(f"the size of dimension {label!r}", size)


def _whole_place(label: str, place: object) -> int:
    try:
        return check_number(label, place)
    except TypeError:
        raise TypeError(f"{label} is {shown(place)}: give a whole number, or slice(start, stop)") from None


def _whole_slice(label: str, chosen: slice) -> slice:
    if chosen.step == 0:
        raise ValueError(f"{label} is {shown(chosen)}: the step must not be 0")
    parts = (("start", chosen.start), ("stop", chosen.stop), ("step", chosen.step))
    return slice(*(None if part is None else check_number(f"the {name} of {label}", part) for name, part in parts))


def _split(label: str, size: int, parts: tuple[str, ...], given: Mapping[str, int]) -> Extent:
    """The extent of *parts*, which replace the dimension *label*."""
    open_parts = [part for part in parts if part not in given]
    if not parts:
        raise ValueError(f"splitting {label} needs the names of its parts")
    if len(open_parts) > 1:
        raise ValueError(f"splitting {label} needs the sizes of all parts but one; {', '.join(open_parts)} have none")
    known = math.prod(given[part] for part in parts if part in given)
    if open_parts and size % known:
        sizes = " x ".join(f"{part}={given.get(part, '?')}" for part in parts)
        raise ValueError(f"{label} has size {size}, which {known} does not divide: {sizes} cannot be")
    missing = size // known if open_parts else 1
    extent = Extent(parts, tuple(given.get(part, missing) for part in parts))
    if len(extent) != size:
        raise ValueError(f"{label} has size {size}, its parts {extent} make up {len(extent)}")
    return extent


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array of *shape* without gaps, in elements; a dimension of size 0 counts as 1, as in torch."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
