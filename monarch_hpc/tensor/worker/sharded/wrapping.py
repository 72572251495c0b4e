"""Sharded tensors of what a rank has, in a tenth of the time of `DTensor.from_local`, for what happens in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

__all__ = ["MAX_SPECS", "spec_of", "with_spec", "wrapped"]

MAX_SPECS = 1024
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
    return with_spec(own, spec_of(mesh, placements, shape, stride, own.dtype))


def spec_of(
    mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> DTensorSpec:
    """The description of a sharded tensor, see `wrapped`; the same object for the same."""
    key = placements, shape, stride, dtype
    spec: DTensorSpec | None = mesh.specs.get(key)
    if spec is None:
        if len(mesh.specs) >= MAX_SPECS:
            mesh.specs.clear()
        meta = TensorMeta(torch.Size(shape), stride, dtype)
        spec = mesh.specs[key] = DTensorSpec(mesh, placements, tensor_meta=meta)
    return spec


def with_spec(own: torch.Tensor, spec: DTensorSpec) -> DTensor:
    """The sharded tensor that is described, of which this rank has *own*, below autograd."""
    made: DTensor = _new(DTensor, own, spec, requires_grad=False)
    return made


_new: Any = DTensor.__new__
"""Makes one without `__init__`, which does nothing but to tell torch's compiler that it is not for it."""
