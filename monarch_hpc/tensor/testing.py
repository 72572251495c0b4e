"""Meshes without procs, for tests of programs with mesh tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from monarch_hpc.tensor.local.mesh import make_local_mesh

__all__ = ["local_mesh"]


@contextmanager
def local_mesh(shape: Mapping[str, int] | None = None, **sizes: int) -> Iterator[Any]:
    """A mesh of ranks in this process, for unit tests: ``with local_mesh(dp=2) as procs:``.

    A program does with it what it does with procs: it activates it, makes a `Mesh` of it, trains. Nothing is started,
    neither agents nor processes. Ranks run one at a time, when a value is read or much is issued, so that a debugger
    stops in functions that run there. It has no actors.

    Args:
        shape: sizes by name of the dimension.
        **sizes: likewise.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is not positive.
    """
    mesh = make_local_mesh({**(shape or {}), **sizes})
    try:
        yield mesh
    finally:
        mesh.stop()
