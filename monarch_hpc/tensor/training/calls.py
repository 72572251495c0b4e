"""Calls, by name, of what the ranks do with modules and optimizers that live there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import CALL, TRAINING_CALLS, CallRequest
from monarch_hpc.wire.frames import copy_of
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps

__all__ = ["Issued", "held", "request_of"]


class Issued:
    """A call that can be issued again and again.

    Args:
        name: ``module.function`` in `worker.training`.
        args: its arguments, with `Ref` for values.
        refs: their numbers.
        num_outs: see `CallRequest`.
        grads: likewise.

    Raises:
        TypeError: an argument cannot be sent.
    """

    def __init__(self, name: str, args: Sequence[Any], refs: Sequence[int], num_outs: int, *, grads: str = "") -> None:
        self._request = request_of(name, args, num_outs)._replace(grads=grads)
        self._refs = list(refs)
        self._num_values = 1 if num_outs < 0 else num_outs

    def issue(self, view: View) -> int:
        """Issue it; return the number of its result."""
        record = [CALL, -2, -1, len(self._refs), *self._refs]
        begins_step = self._request.grads == "dropped"  # travels with the step
        return view.engine.emit(view, record, self._num_values, self._request, 4, at_once=not begins_step)


def request_of(name: str, args: Sequence[Any], num_outs: int) -> CallRequest:
    """The request for a call; see `Issued`."""
    try:
        packed, buffers = dumps((TRAINING_CALLS + name, tuple(args), {}))
    except Exception as error:  # pickling runs user code
        raise refusal({f"an argument of {name}": args}, error) from error
    return CallRequest(name, packed, tuple(copy_of(buffer) for buffer in buffers), num_outs, torch.is_grad_enabled())


def held(number: int, view: View, node: Any = None) -> MeshTensor:
    """A tensor that owns an object on the ranks.

    Args:
        number: the object's.
        view: the ranks.
        node: what gradients flow to through calls of the object; None if there is nothing.
    """
    meta = Meta.make((), (), torch.float32, torch.device("cpu"), bool(node), not node)
    return MeshTensor.make(number, view, meta, node or None)
