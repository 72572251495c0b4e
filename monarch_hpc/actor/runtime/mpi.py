"""Checks that MPI sees the world that its step was started for. The door to mpi4py, imported only in MPI procs."""

from __future__ import annotations

import importlib.util

from monarch_hpc.actor.context import context

__all__ = ["check_world"]


def check_world() -> None:
    """Start MPI in this proc and compare its world with the proc mesh; do nothing if mpi4py is not installed.

    Raises:
        RuntimeError: they differ; if the library does not support the PMI plugin, each rank is alone in its world.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return
    from mpi4py import MPI

    world, proc = MPI.COMM_WORLD, context().proc
    found, expected = (world.Get_rank(), world.Get_size()), (proc.rank, proc.num_ranks)
    if found != expected:
        # mpi4py returns the C string's end, too, which Open MPI 5 counts as part of it.
        library = MPI.Get_library_version().rstrip("\0").splitlines()[0]
        raise RuntimeError(
            f"MPI says rank {found[0]} of {found[1]}, the mesh rank {expected[0]} of {expected[1]}: {library} does not "
            "support the plugin of config key 'procs.mpi'"
        )
