"""Calls, by name, of what the ranks do with sharded tensors beside torch's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from monarch_hpc.core.shape import contiguous_strides
from monarch_hpc.tensor.ops.meta import GraphConversion, GraphLeaf, Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import CALL, SHARDED_CALLS, CallRequest
from monarch_hpc.wire.serializer import dumps

__all__ = ["call_by_name", "derived", "new_tensor"]


def call_by_name(
    view: View, name: str, args: Sequence[Any], refs: Sequence[int], num_outs: int = 1, at_once: bool = True
) -> int:
    """Issue a call of a function of `worker.sharded.calls`; return the number of its result.

    Args:
        view: the ranks.
        name: of the function.
        args: its arguments, with `Ref` for values.
        refs: their numbers.
        num_outs: see `CallRequest`.
        at_once: whether it is sent now, not with a read that follows.
    """
    packed, buffers = dumps((SHARDED_CALLS + name, tuple(args), {}))
    request = CallRequest(name, packed, tuple(buffers), num_outs, torch.is_grad_enabled())
    num_values = 1 if num_outs < 0 else num_outs
    return view.engine.emit(view, [CALL, -2, -1, len(refs), *refs], num_values, request, 3, at_once=at_once)


def new_tensor(number: int, view: View, shape: Sequence[int], dtype: torch.dtype, grads: bool) -> MeshTensor:
    """The mesh tensor for a new contiguous value, a leaf of autograd's graph."""
    sizes = tuple(shape)
    meta = Meta.make(sizes, contiguous_strides(sizes), dtype, torch.device("cpu"), grads, True)
    return MeshTensor.make(number, view, meta, GraphLeaf(number) if grads else None)


def derived(number: int, view: View, source: MeshTensor, meta: Meta, sharded: View | None = None) -> MeshTensor:
    """A tensor that has a parent in autograd's graph.

    Args:
        number: its number.
        view: its ranks.
        source: the other one.
        meta: its description.
        sharded: the view of the sharded one of the two, if the other is not.
    """
    grads = source._m.grads and torch.is_grad_enabled()
    node: Any = None
    if grads:
        node = (source._n,) if sharded is None else GraphConversion.of(source._n, sharded)
    return MeshTensor.make(number, view, meta.with_grads(grads, leaf=not grads), node)
