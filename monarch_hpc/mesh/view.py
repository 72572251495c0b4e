"""The base classes of meshes: named dimensions and views of them; and the tensors of meshes of procs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from monarch_hpc.core.arguments import check_texts
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.html import html_table

__all__ = ["MeshView", "ShownRows", "TensorProcs", "hosts_of"]


ShownRows = tuple[list[str], Callable[[int], list[object]]]


class MeshView:
    """A mesh or a view of one; views copy nothing."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def _repr_html_(self) -> str:
        """The first elements as a table, for notebooks; waits for nothing."""
        head, rows = self._shown_rows()
        points = ((self.extent.point(rank), base) for rank, base in enumerate(self._region.base_ranks()))
        names = [*self.sizes] if head else []
        cells = ([*(point[name] for name in names), *rows(base)] for point, base in points)
        return html_table(repr(self), [*names, *head], cells, len(self) if head else 0)

    def _shown_rows(self) -> ShownRows:
        """Columns for `_repr_html_`, and their values for an element by its base rank."""
        return [], lambda _base_rank: []

    @property
    def extent(self) -> Extent:
        """Names and sizes of the dimensions."""
        return self._region.extent

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by dimension name, outermost first."""
        return self._region.extent.to_dict()

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The number of elements, of the whole mesh or along some dimensions.

        Args:
            dim: name of a dimension, or several names for the product of their sizes; None for the whole mesh.

        Raises:
            KeyError: no dimension of that name.
            TypeError: *dim* is neither a name nor a sequence of names.
        """
        if dim is None:
            return len(self._region)
        names = [dim] if isinstance(dim, str) else check_texts("dim", dim, "the names of dimensions")
        return math.prod(self.extent[name] for name in names)

    def __len__(self) -> int:
        return len(self._region)

    def slice(self, **selection: int | slice) -> Self:
        """Keep part of the mesh: ``slice(hosts=0)``, ``slice(gpus=slice(0, 2))``.

        Args:
            **selection: by dimension name, a coordinate, which removes the dimension, or a slice, which keeps it.
                Negative numbers count from the end.

        Raises:
            KeyError: no dimension of that name.
            IndexError: a coordinate is outside its dimension, or a slice leaves nothing of it.
            TypeError: a value is neither a slice nor a whole number.
            ValueError: the step of a slice is 0.
        """
        return self._viewing(self._region.slice(**selection))

    def split(self, **selection: Sequence[str] | int) -> Self:
        """Split a dimension into several: ``split(hosts=("racks", "hosts"), racks=4)``.

        Args:
            **selection: for a dimension, the names that replace it, outermost first; for each of these names its size,
                of which one may be omitted.

        Raises:
            KeyError: no dimension of that name.
            TypeError: a value is neither a sequence of names nor a size.
            ValueError: the product of the sizes is not the size of the dimension.
        """
        return self._viewing(self._region.split(**selection))

    def flatten(self, name: str) -> Self:
        """Merge all dimensions into one, row by row.

        Args:
            name: name of the new dimension.

        Raises:
            TypeError: the name is not a string.
            ValueError: the name is empty; or a slice left gaps, which one dimension cannot represent.
        """
        return self._viewing(self._region.flatten(name))

    def rename(self, **names: str) -> Self:
        """Rename dimensions: ``rename(gpus="tp")``.

        Args:
            **names: the new name of each dimension to rename, by its present name.

        Raises:
            KeyError: no dimension of that name.
            TypeError: a new name is not a string.
            ValueError: two dimensions would have the same name, or one would be empty.
        """
        return self._viewing(self._region.rename(**names))

    def _healable(self) -> tuple[str, Mapping[int, Any]] | None:
        """Name and procs, by base rank, of a mesh that `heal_mesh` takes; None for meshes of other things."""
        return None

    def _viewing(self, region: Region) -> Self:
        raise NotImplementedError


_TENSORS = "monarch_hpc.tensor.active"
"""Tensors on meshes, by name: this layer does not depend on them."""


def _tensors() -> Any:
    return importlib.import_module(_TENSORS)


class TensorProcs(MeshView):
    """A mesh of procs, as far as it makes tensors."""

    def activate(self) -> AbstractContextManager[object]:
        """Have torch's functions make tensors on these procs: ``with procs.activate():``; needs torch.

        In the block, functions that make tensors of none make them on every proc. Operations on such tensors run where
        they are, also after the block. At its end, all that was issued is done.

        Raises:
            SpawnError: the procs did not start.
            DeviceMeshError: a proc is gone; also at the end of the block.
        """
        activation: AbstractContextManager[object] = _tensors().activate(self)
        return activation

    def capture(self, function: Callable[..., Any] | None = None, *, verify: bool = False) -> Any:
        """Have a function on mesh tensors replayed by one record; a decorator. See docs/tensors.md; needs torch."""
        return _tensors().capture_on(self, function, verify)

    def rank_tensor(self, dim: str) -> Any:
        """The coordinate of each proc along a dimension, as a mesh tensor; needs torch, and KeyError if unknown."""
        return _tensors().rank_tensor(self, dim)

    rank = rank_tensor

    def rank_tensors(self) -> dict[str, Any]:
        """The coordinates along all dimensions, by name; see `rank_tensor`."""
        tensors: dict[str, Any] = _tensors().rank_tensors(self)
        return tensors

    def process_group(self, dims: str | tuple[str, ...]) -> Any:
        """The procs along dimensions as a process group, for functions with `remote`; see `RemoteProcessGroup`."""
        return _tensors().process_group(self, dims)


def hosts_of(procs: Mapping[int, Any]) -> ShownRows:
    """The column of hosts of procs that may be starting: `mesh.launch.Launch` knows their hosts without waiting."""
    host = getattr(procs, "host", None) or (lambda base_rank: procs[base_rank].host)
    return ["host"], lambda base_rank: [host(base_rank)]
