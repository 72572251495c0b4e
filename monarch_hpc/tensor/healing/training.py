"""Snapshots of optimizers and learning rate schedulers, which go back with the state on the ranks.

An optimizer's step is a version. torch's hooks before and after each step tell when; those of optimizers without
sharded tensors return at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View

__all__ = ["OptimizerSnapshot", "follow_optimizers"]


class OptimizerSnapshot:
    """Hyperparameters, step counters and schedules of one optimizer, before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = ref(optimizer)
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self._state = {}
        with torch._C.DisableTorchFunction():
            for parameter, state in optimizer.state.items():
                counters = [
                    (value, value.clone())
                    for value in state.values()
                    if isinstance(value, torch.Tensor) and value.__class__ is not MeshTensor
                ]
                self._state[parameter] = dict(state), counters
        self._schedules = [(one, _copied(one.__dict__)) for one in _schedulers.get(optimizer, ())]

    def restore(self) -> None:
        """Return to it."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        for group, kept in zip(optimizer.param_groups, self._groups, strict=False):
            for name in [name for name in group if name != "params" and name not in kept]:
                del group[name]
            group.update(kept)
        for parameter in [parameter for parameter in optimizer.state if parameter not in self._state]:
            del optimizer.state[parameter]
        with torch._C.DisableTorchFunction():
            for parameter, (state, counters) in self._state.items():
                optimizer.state[parameter] = dict(state)
                for value, number in counters:
                    value.copy_(number)
        for schedule, kept in self._schedules:
            schedule.__dict__.update(_copied(kept))


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in state.items()}


_schedulers: WeakKeyDictionary[torch.optim.Optimizer, WeakSet[LRScheduler]] = WeakKeyDictionary()
_followed = False


def follow_optimizers(
    made: Callable[[View], None], before: Callable[[View, Any], None], after: Callable[[View], None]
) -> None:
    """Have functions called when an optimizer of sharded tensors is made, and before and after each of its steps.

    Args:
        made: takes the view of the tensors.
        before: takes the view of the tensors, and the optimizer.
        after: takes the view.
    """
    global _followed
    if _followed:
        return
    _followed = True
    register_optimizer_step_pre_hook(
        lambda optimizer, _args, _kwargs: before(view, optimizer) if (view := _view_of(optimizer)) else None
    )
    register_optimizer_step_post_hook(
        lambda optimizer, _args, _kwargs: after(view) if (view := _view_of(optimizer)) else None
    )
    add_group = torch.optim.Optimizer.add_param_group

    def add_param_group(self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        add_group(self, group)
        view = _view_of(self)
        if view is not None:
            made(view)

    torch.optim.Optimizer.add_param_group = add_param_group  # type: ignore[method-assign,assignment]
    original = LRScheduler.__setattr__

    def set_attribute(self: LRScheduler, name: str, value: Any) -> None:
        original(self, name, value)
        if name == "optimizer" and isinstance(value, torch.optim.Optimizer):
            _schedulers.setdefault(value, WeakSet()).add(self)

    LRScheduler.__setattr__ = set_attribute  # type: ignore[method-assign,assignment]  # no hooks


def _view_of(optimizer: torch.optim.Optimizer) -> View | None:
    """The view of an optimizer's sharded parameters; None if it has others."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.__class__ is not MeshTensor:
                return None
            view: View = parameter._h.view
            return view if view.mesh else None
    return None
