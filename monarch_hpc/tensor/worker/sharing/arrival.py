"""Tensors that arrive at actors: a mesh tensor in a message becomes this rank's copy."""

from __future__ import annotations

from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.shape import Region
from monarch_hpc.tensor.worker.sharing.local import wait_for_worker

__all__ = ["arrive"]


def arrive(key: int, token: int, mesh: int, region: Region, timeout_s: float) -> object:
    """Wait until the worker of this proc has made the copy, and take it.

    A message may be read before the constructor of the worker, which was spawned earlier, has run: it waits for that.

    Args:
        key: identifies the engine.
        token: number of the copy, see `TensorWorker.borrowed`.
        mesh: number of the mesh of procs of the tensor.
        region: the ranks in it that the tensor is on.
        timeout_s: longest wait for the worker.

    Raises:
        RuntimeError: this proc is not one of them, the operation that makes the tensor failed, its mesh ended, or its
            worker did not start in time.
    """
    own = current_runtime().own
    if own.mesh != mesh or own.rank not in region.base_ranks():
        raise RuntimeError(
            f"a mesh tensor on {region.extent} was sent to a process that is not one of these ranks: call the actors "
            "there, move it with to_mesh(), or send its value, inspect(t)"
        )
    return wait_for_worker(key, timeout_s, "the worker of a mesh tensor that came in a message").borrowed(token)
