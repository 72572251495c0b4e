"""Gradients of modules on the ranks, which the program sees as sharded tensors; sums them once a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.worker.training.placed import behind_local, placed_as, placements_on

__all__ = ["StandIn", "SummedGradients"]


class SummedGradients:
    """The gradients of a module's parameters, and their sums over ranks with other parts of the batch.

    The ranks add up what their backward passes give. It is summed when somebody reads a gradient, in one message for
    each type of elements and set of dimensions.

    Args:
        params: the parameters.
        dims: for each, the dimensions of *mesh* over which its gradients are to be summed; along those of one rank
            there is nothing to add.
        mesh: the DeviceMesh of the world.

    Attributes:
        torn: why the parameters are not to be used, after a step of an optimizer that failed in the middle; empty if
            they are.
    """

    def __init__(self, params: Sequence[Any], dims: Sequence[tuple[str, ...]], mesh: Any) -> None:
        self.params = list(params)
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        self._dims = [tuple(name for name in own if sizes[name] > 1) for own in dims]
        self._own = [place for place, own in enumerate(self._dims) if own]
        self._mesh = mesh
        self.torn = ""
        self._unsummed: set[int] = set()
        self._summed: dict[int, torch.Tensor] = {}

    def before_backward(self) -> None:
        """Set aside what is summed already."""
        for place in self._own:
            param = self.params[place]
            if param.grad is not None and place not in self._unsummed:
                self._summed[place] = param.grad
                param.grad = None

    def after_backward(self) -> None:
        """Note that there is something to sum."""
        self._unsummed.update(self._own)

    @property
    def is_unsettled(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._unsummed or self._summed)

    def settle(self) -> None:
        """Sum what is not summed; on all ranks."""
        groups: dict[Any, list[int]] = {}
        for place in sorted(self._unsummed):
            param = self.params[place]
            if param.requires_grad:
                groups.setdefault((self._dims[place], param.dtype), []).append(place)
        self._unsummed.clear()
        for (dims, _), places in groups.items():
            self._sum(dims, places)
        for place, before in self._summed.items():
            param = self.params[place]
            if param.grad is not None:
                behind_local(before).add_(behind_local(param.grad))
            param.grad = before
        self._summed.clear()

    def _sum(self, dims: tuple[str, ...], places: list[int]) -> None:
        params = [self.params[place] for place in places]
        # Ranks may disagree on which parameters were used: an unused one adds nothing, and none stays without.
        grads = [param.grad for param in params]
        own = [
            behind_local(torch.zeros_like(param) if grad is None else grad)
            for param, grad in zip(params, grads, strict=True)
        ]
        used = torch.tensor([grad is not None for grad in grads], dtype=own[0].dtype, device=own[0].device)
        flat = torch.cat([*(one.reshape(-1) for one in own), used])
        for name in dims:
            dist.all_reduce(flat, group=self._mesh.get_group(name))
        *sums, users = torch.split(flat, [*(one.numel() for one in own), len(own)])
        targets, totals = [], []
        for param, grad, one, total, num_used in zip(params, grads, own, sums, users.tolist(), strict=True):
            if not num_used:
                continue
            if grad is None:
                param.grad = torch.zeros_like(param)
            targets.append(one if grad is not None else behind_local(param.grad))
            totals.append(total.view_as(one))
        if targets:
            torch._foreach_copy_(targets, totals)

    def forget(self, place: int) -> None:
        """Note that the gradient of a parameter is replaced."""
        self._unsummed.discard(place)
        self._summed.pop(place, None)

    def drop(self, places: Sequence[int]) -> None:
        """Drop the gradients of some parameters."""
        self._unsummed.difference_update(places)
        for place in places:
            self.params[place].grad = None
            self._summed.pop(place, None)

    def stand_in(self, place: int, mesh: Any) -> Any:
        """A parameter as a sharded tensor of *mesh*."""
        param = self.params[place]
        grads = param.requires_grad
        made: Any = _NoGradient.apply(param, mesh) if grads else placed_as(param, mesh, None)  # type: ignore[no-untyped-call]
        made._stand_in = StandIn(self, place, mesh)
        return made


class StandIn:
    """Gives a sharded tensor that stands for a module's parameter the gradient of that parameter.

    Args:
        gradients: of the module.
        place: of the parameter; an attribute.
        mesh: of the sharded tensor.
    """

    def __init__(self, gradients: SummedGradients, place: int, mesh: Any) -> None:
        self._gradients = gradients
        self.place = place
        self._mesh = mesh

    @property
    def gradients(self) -> SummedGradients:
        """Those of the module."""
        return self._gradients

    @property
    def param(self) -> Any:
        """The parameter."""
        return self._gradients.params[self.place]

    def grad(self) -> Any:
        """The gradient, summed, as a sharded tensor that shares its memory; None if there is none."""
        self._gradients.settle()
        grad = self.param.grad
        return None if grad is None else placed_as(grad, self._mesh, None)

    def set_grad(self, value: Any) -> None:
        """Replace the gradient."""
        self._gradients.forget(self.place)
        param = self.param
        if value is None:
            param.grad = None
            return
        value = value.redistribute(placements=placements_on(self._mesh, param))
        grad = torch.zeros_like(param)
        behind_local(grad).copy_(behind_local(value))
        param.grad = grad

    def require_grad(self, flag: bool) -> None:
        """Change whether the parameter requires a gradient."""
        self.param.requires_grad_(flag)


class _NoGradient(torch.autograd.Function):
    """Marks a sharded tensor as one whose gradient comes from elsewhere."""

    @staticmethod
    def forward(ctx: Any, param: Any, mesh: Any) -> DTensor:
        return placed_as(param, mesh, None)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "a parameter of a module that lives on the ranks was used beside its module: gradients reach it through "
            "calls of the module only; put the computation into the module"
        )
