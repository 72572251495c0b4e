"""What all meshes share: named dimensions and views of them."""

from __future__ import annotations

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

    def size(self, dim: str | None = None) -> int:
        """The size of one dimension, or the number of elements.

        Raises:
            KeyError: no dimension of that name.
        """
        if dim is None:
            return len(self._region)
        sizes = self.sizes
        if dim not in sizes:
            raise KeyError(f"no dimension {dim!r}; there are: {', '.join(sizes) or 'none'}")
        return sizes[dim]

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

    def _viewing(self, region: Region) -> Self:
        raise NotImplementedError
