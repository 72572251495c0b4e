"""What all meshes share: named dimensions and views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from monarch_hpc.core.arguments import check_texts
from monarch_hpc.core.shape import Extent, Region

__all__ = ["MeshView"]


class MeshView:
    """A mesh or a slice of one; slicing copies nothing."""

    def __init__(self, region: Region) -> None:
        self._region = region

    @property
    def extent(self) -> Extent:
        """Names and sizes of the dimensions."""
        return self._region.extent

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by dimension name."""
        return self._region.extent.to_dict()

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The size of one dimension, the product of several, or the number of elements.

        Raises:
            KeyError: no dimension of that name.
            TypeError: neither a name nor several.
        """
        if dim is None:
            return len(self._region)
        names = [dim] if isinstance(dim, str) else check_texts("dim", dim, "the names of dimensions")
        return math.prod(self.extent[name] for name in names)

    def __len__(self) -> int:
        return len(self._region)

    def slice(self, **selection: int | slice) -> Self:
        """Keep part of the mesh: ``slice(hosts=0)``, ``slice(gpus=slice(0, 2))``.

        A number removes its dimension, a slice keeps it.

        Raises:
            KeyError: no dimension of that name.
            IndexError: the number is outside the dimension, or nothing is left of it.
            TypeError: neither a slice nor a whole number.
            ValueError: the step of a slice is 0.
        """
        return self._viewing(self._region.slice(**selection))

    def split(self, **selection: Sequence[str] | int) -> Self:
        """Make several dimensions of one: ``split(hosts=("racks", "hosts"), racks=4)``.

        For a dimension give the names that replace it, outermost first; for these their sizes, of which one
        may be left out.

        Raises:
            KeyError: no dimension of that name.
            TypeError: neither names nor a size.
            ValueError: the sizes do not make up the dimension.
        """
        return self._viewing(self._region.split(**selection))

    def flatten(self, name: str) -> Self:
        """Make one dimension of all, row by row.

        Raises:
            TypeError: the name is not a string.
            ValueError: a slice left gaps, which one dimension cannot have.
        """
        return self._viewing(self._region.flatten(name))

    def rename(self, **names: str) -> Self:
        """Give dimensions other names: ``rename(gpus="tp")``.

        Raises:
            KeyError: no dimension of that name.
            TypeError: a name is not a string.
            ValueError: two dimensions would have one name.
        """
        return self._viewing(self._region.rename(**names))

    def _viewing(self, region: Region) -> Self:
        raise NotImplementedError
