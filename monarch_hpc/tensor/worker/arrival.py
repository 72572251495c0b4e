"""Tensors that arrive at actors: a mesh tensor in a message becomes this rank's copy."""

from __future__ import annotations

from monarch_hpc.tensor.worker.local import worker_state

__all__ = ["arrive"]


def arrive(key: int, token: int) -> object:
    """Take the copy that the worker of this proc has made, when it has come that far.

    Raises:
        RuntimeError: this proc is not a rank of the tensor's mesh, or the operation that makes it failed.
    """
    worker = worker_state(key)
    if worker is None:
        raise RuntimeError("a mesh tensor arrived in a process that is not a rank of its mesh: send fetch_shard(t)")
    return worker.borrowed(token)
