"""Sharded tensors of what a rank has, in a tenth of the time of `DTensor.from_local`, for what happens in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

__all__ = ["with_spec", "wrapped"]

_MAX_SPECS = 1024
"""Number of descriptions that are kept for a mesh: a training has some tens, changing shapes have any number."""


def wrapped(
    own: torch.Tensor, mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...], stride: tuple[int, ...]
) -> DTensor:
    """The sharded tensor of which this rank has *own*, below autograd.

    Args:
        own: this rank's part, in a tensor that nobody else holds.
        mesh: a `RankMesh`.
        placements: of the result.
        shape: of the whole.
        stride: of the whole.
    """
    key = placements, shape, stride, own.dtype
    spec = mesh.specs.get(key)
    if spec is None:
        if len(mesh.specs) >= _MAX_SPECS:
            mesh.specs.clear()
        meta = TensorMeta(torch.Size(shape), stride, own.dtype)
        spec = mesh.specs[key] = DTensorSpec(mesh, placements, tensor_meta=meta)
    return with_spec(own, spec)


def with_spec(own: torch.Tensor, spec: DTensorSpec) -> DTensor:
    """The sharded tensor that is described, of which this rank has *own*, below autograd."""
    made: DTensor = _new(DTensor, own, spec, requires_grad=False)
    return made


_new: Any = DTensor.__new__
"""Makes one without `__init__`, which does nothing but to tell torch's compiler that it is not for it."""
