"""What all meshes share: named dimensions and views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

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
        """
        if dim is None:
            return len(self._region)
        sizes = self.sizes
        product = 1
        for name in [dim] if isinstance(dim, str) else dim:
            if name not in sizes:
                raise KeyError(f"no dimension {name!r}; there are: {', '.join(sizes) or 'none'}")
            product *= sizes[name]
        return product

    def __len__(self) -> int:
        return len(self._region)

    def slice(self, **selection: int | slice) -> Self:
        """Keep part of the mesh: ``slice(hosts=0)``, ``slice(gpus=slice(0, 2))``.

        A number removes its dimension, a slice keeps it.

        Raises:
            KeyError: no dimension of that name.
            IndexError: the number is outside the dimension, or nothing is left of it.
        """
        return self._viewing(self._region.slice(**selection))

    def split(self, **selection: Sequence[str] | int) -> Self:
        """Make several dimensions of one: ``split(hosts=("racks", "hosts"), racks=4)``.

        For a dimension give the names that replace it, outermost first; for these their sizes, of which one
        may be left out.

        Raises:
            KeyError: no dimension of that name.
            ValueError: the sizes do not make up the dimension.
        """
        return self._viewing(self._region.split(**selection))

    def flatten(self, name: str) -> Self:
        """Make one dimension of all, row by row.

        Raises:
            ValueError: a slice left gaps, which one dimension cannot have.
        """
        return self._viewing(self._region.flatten(name))

    def rename(self, **names: str) -> Self:
        """Give dimensions other names: ``rename(gpus="tp")``.

        Raises:
            KeyError: no dimension of that name.
            ValueError: two dimensions would have one name.
        """
        return self._viewing(self._region.rename(**names))

    def _viewing(self, region: Region) -> Self:
        raise NotImplementedError
