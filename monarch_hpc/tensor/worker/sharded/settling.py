"""Sums of gradients: what backward passes have left as summands on each rank is added up once, in few messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from monarch_hpc.tensor.worker.sharded.calls import current_ops
from monarch_hpc.tensor.worker.sharded.modes import WithoutModes
from monarch_hpc.tensor.worker.sharded.wrapping import MAX_SPECS, spec_of, with_spec

__all__ = ["is_settled", "settle_gradients"]


class _Settling(NamedTuple):
    """How a gradient gets the placements of its leaf.

    Attributes:
        is_placed: whether it has them.
        places: dimensions of the mesh, of several ranks each, over which it is summed; None if that is not all.
        spec: the DTensorSpec that it gets.
    """

    is_placed: bool
    places: tuple[int, ...] | None
    spec: Any


def settle_gradients(leaves: Iterable[Any]) -> None:
    """Place the gradients of leaves as they are: what backward passes have added up is summed here, once.

    Sums over the same dimensions of the mesh of the same type of elements travel in one message.
    """
    mesh = current_ops().mesh
    sums: dict[Any, list[tuple[DTensor, DTensor, Any]]] = {}
    with torch.no_grad():
        for leaf in leaves:
            grad = leaf.grad
            if not isinstance(grad, DTensor):
                continue
            is_placed, places, spec = _settling(grad, leaf, mesh)
            if is_placed:
                continue
            if places is None:
                leaf.grad = grad.redistribute(placements=leaf.placements)
            elif places:
                sums.setdefault((places, grad.dtype), []).append((leaf, grad, spec))
            else:
                leaf.grad = with_spec(grad._local_tensor, spec)
        for (places, _), summed in sums.items():
            _add_up(mesh, places, summed)


def is_settled(grad: DTensor, leaf: DTensor) -> bool:
    """Whether the gradient of a leaf is placed as the leaf is."""
    return _settling(grad, leaf, current_ops().mesh).is_placed


def _add_up(mesh: Any, places: tuple[int, ...], summed: list[tuple[DTensor, DTensor, Any]]) -> None:
    """Replace gradients of leaves by their sums over dimensions of the mesh."""
    with WithoutModes():  # all are plain tensors: to a mode each operator costs as much again
        parts = [grad._local_tensor for _, grad, _ in summed]
        flat = parts[0].new_empty(sum(part.numel() for part in parts))
        torch.cat([part.reshape(-1) for part in parts], out=flat)
        for place in places:
            mesh.get_group(place).allreduce([flat]).wait()
        totals = torch.split(flat, [part.numel() for part in parts])
        for (leaf, _, spec), part, total in zip(summed, parts, totals, strict=True):
            leaf.grad = with_spec(total.view(part.shape).clone(), spec)


def _settling(grad: DTensor, leaf: DTensor, mesh: Any) -> _Settling:
    """How a gradient gets the placements of its leaf: to compare placements takes longer than an operator."""
    known: dict[Any, _Settling] = mesh.settlings
    key = grad._spec, leaf._spec
    found = known.get(key)
    if found is None:
        if len(known) >= MAX_SPECS:
            known.clear()
        summed = _summed_places(grad, leaf) if grad.numel() else None
        places = None if summed is None else tuple(place for place in summed if mesh.size(place) > 1)
        spec = spec_of(mesh, leaf.placements, tuple(grad.shape), grad.stride(), grad.dtype)
        found = known[key] = _Settling(grad.placements == leaf.placements, places, spec)
    return found


def _summed_places(grad: DTensor, leaf: DTensor) -> tuple[int, ...] | None:
    """The dimensions of the mesh to sum a gradient over; None where that alone does not place it as its leaf is."""
    places = []
    for place, (have, want) in enumerate(zip(grad.placements, leaf.placements, strict=True)):
        if isinstance(have, Partial) and have.reduce_op == "sum" and isinstance(want, Replicate):
            places.append(place)
        elif have != want:
            return None
    return tuple(places)
