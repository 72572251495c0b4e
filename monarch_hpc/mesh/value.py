"""The results of a call to a mesh, by mesh coordinate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, Self, TypeVar

from monarch_hpc.core.arguments import check_number
from monarch_hpc.core.errors.summary import origin_of
from monarch_hpc.core.shape import Extent, Point, Region
from monarch_hpc.core.text.html import html_table, short_repr
from monarch_hpc.mesh.view import MeshView

__all__ = ["ValueMesh"]

T = TypeVar("T")

_NO_FAILURES: Mapping[int, BaseException] = MappingProxyType({})


class ValueMesh(MeshView, Generic[T]):
    """One value for each element of the called mesh; iteration yields (point, value) pairs, row by row.

    Args:
        region: shape of the mesh; its base ranks index *values*.
        values: results by base rank.
        failures: exceptions of the ranks that failed, by base rank; each also stands in *values*.
    """

    def __init__(
        self, region: Region, values: Sequence[T], failures: Mapping[int, BaseException] = _NO_FAILURES
    ) -> None:
        super().__init__(region)
        self._values = values
        self._failures = failures

    def _viewing(self, region: Region) -> Self:
        return type(self)(region, self._values, self._failures)

    def flatten(self, name: str) -> Self:
        """Merge all dimensions into one, row by row. Copies the values only if a slice left gaps.

        Args:
            name: name of the new dimension.

        Raises:
            TypeError: the name is not a string.
            ValueError: the name is empty.
        """
        try:
            return super().flatten(name)
        except ValueError:
            ranks = list(self._region.base_ranks())
            failures = {rank: self._failures[base] for rank, base in enumerate(ranks) if base in self._failures}
            whole = Region.whole(Extent((name,), (len(ranks),)))
            return type(self)(whole, [self._values[base] for base in ranks], failures)

    def failures(self) -> dict[Point, BaseException]:
        """The exceptions of the ranks that failed, by coordinate; empty unless called with ``on_error="collect"``."""
        if not self._failures:
            return {}
        ranks = enumerate(self._region.base_ranks())
        return {self.extent.point(rank): self._failures[base] for rank, base in ranks if base in self._failures}

    def items(self) -> Iterator[tuple[Point, T]]:
        """Coordinates and values, row by row."""
        for rank, base_rank in enumerate(self._region.base_ranks()):
            yield self.extent.point(rank), self._values[base_rank]

    def __iter__(self) -> Iterator[tuple[Point, T]]:
        return self.items()

    def values(self) -> list[T]:
        """The values, row by row."""
        return [self._values[base_rank] for base_rank in self._region.base_ranks()]

    def get(self, rank: int) -> T:
        """The value of *rank*: `values()[rank]`, but not from the end.

        Raises:
            IndexError: the mesh has no such rank.
            TypeError: *rank* is not a whole number.
        """
        rank = check_number("rank", rank)
        if not 0 <= rank < len(self._region):
            raise IndexError(f"rank is {rank}: this mesh has ranks 0 to {len(self._region) - 1}")
        return self._values[self._region.base_rank(rank)]

    def item(self, **coordinates: int) -> T:
        """The value at *coordinates*; dimensions of size 1 need not be named.

        Raises:
            IndexError: a coordinate is outside its dimension.
            KeyError: no dimension of that name.
            TypeError: a coordinate is not a whole number.
            ValueError: the coordinates leave more than one value.
        """
        chosen = self._region.slice(**coordinates)
        if len(chosen) != 1:
            raise ValueError(f"{len(chosen)} values are left ({chosen.extent}); name every dimension")
        return self._values[chosen.base_rank(0)]

    def __repr__(self) -> str:
        failures = self.failures()

        def show(point: Point, value: T) -> str:
            origin = origin_of(failures[point]) if point in failures else ""
            return f"{point}: {value!r}{origin and f' raised at {origin}'}"

        shown = ", ".join(show(point, value) for point, value in itertools.islice(self, 4))
        return f"ValueMesh({self.extent}: {shown}{', ...' if len(self) > 4 else ''})"

    def _repr_html_(self) -> str:
        """The first values as a table, for notebooks."""
        failures = self.failures()
        names = [*self.sizes]

        def show(point: Point, value: T) -> list[object]:
            failed = f" raised at {origin}" if point in failures and (origin := origin_of(failures[point])) else ""
            return [*(point[name] for name in names), f"{short_repr(value)}{failed}"]

        caption = f"ValueMesh({self.extent})" + (f", {len(failures)} failed" if failures else "")
        return html_table(caption, [*names, "value"], (show(*item) for item in self), len(self))
