"""Optimizers that live on the ranks: a step is one message, whatever the number of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from monarch_hpc.tensor.ops.dispatch import put
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.meta import GraphLeaf
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.remote_functions import Remote
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import TRAINING_CALLS, Ref
from monarch_hpc.tensor.training.calls import Issued, held

__all__ = ["RemoteOptimizer"]

_STATE = TRAINING_CALLS + "optimizers.state"


class RemoteOptimizer(torch.optim.Optimizer):
    """An optimizer of sharded parameters that lives on their ranks.

    Schedulers, `clip_grad_norm_` and `GradScaler` take it as any optimizer: its `param_groups` are here, and changes of
    hyperparameters go with the next step.

    Args:
        cls: a class of optimizers, such as `torch.optim.AdamW`, whose `step` needs no closure.
        params: sharded parameters of one mesh, or groups of such, as of any optimizer.
        **options: further arguments of *cls*, such as ``lr``.

    Raises:
        TypeError: *cls* is not such a class, a parameter is not sharded, or an option cannot be sent.
        ValueError: parameters are on different meshes, or *cls* refuses an option.
    """

    def __init__(self, cls: type[torch.optim.Optimizer], params: Iterable[Any], **options: Any) -> None:
        if not isinstance(cls, type) or not issubclass(cls, torch.optim.Optimizer):
            raise TypeError(f"cls is {cls!r}; it is a class of optimizers, such as torch.optim.AdamW")
        closure = inspect.signature(cls.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(f"{cls.__name__}.step needs a closure, which is the program's: use {cls.__name__} itself")
        with torch._C.DisableTorchFunction():
            defaults = cls([nn.Parameter(torch.zeros(1))], **options).defaults
        super().__init__(params, defaults)
        tensors = [param for group in self.param_groups for param in group["params"]]
        view: View | None = None
        for param in tensors:
            if param.__class__ is not MeshTensor or not param._h.view.mesh:
                kind = f"{type(param).__name__} of shape {tuple(param.shape)} on {param.device}"
                raise TypeError(f"a parameter is a {kind}; a RemoteOptimizer is for sharded ones, see module_to_mesh")
            if view is not None and param._h.view is not view:
                raise foreign(param, view)
            view = param._h.view
        assert view is not None  # torch refuses an empty list
        self.cls = cls
        self._view = view
        self._numbers = [param._h.number for param in tensors]
        self._sent = self._hyperparameters()
        groups = [
            {**own, "params": [Ref(param._h.number) for param in group["params"]]}
            for own, group in zip(self._sent, self.param_groups, strict=True)
        ]
        number = Issued("optimizers.build", [cls, groups, options], self._numbers, -2).issue(view)
        view.engine.forfeit("an optimizer lives on its ranks, whose state is on no other rank")
        self._holder = held(number, view)
        self._own = [number, *self._numbers]
        self._step = Issued("optimizers.step", [Ref(number)], self._own, 0, grads="read")
        self._zero_grad = Issued("optimizers.zero_grad", [Ref(number)], self._own, 0, grads="dropped")

    def _hyperparameters(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Raises:
            TypeError: the optimizer exists on the ranks already.
        """
        if hasattr(self, "_holder"):
            raise TypeError("add_param_group of a RemoteOptimizer: make another one with all groups")
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on all ranks; waits for nothing. Gradients that are not summed yet are summed first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        changes = self._changes()
        if changes:
            arguments = [Ref(self._own[0]), changes]
            Issued("optimizers.step", arguments, self._own, 0, grads="read").issue(self._view)
        else:
            self._step.issue(self._view)
        return loss

    def _changes(self) -> list[tuple[int, str, Any]]:
        """The hyperparameters that have changed since they were asked for: number of the group, name, value."""
        own = self._hyperparameters()
        changes = [
            (place, name, value)
            for place, (group, sent) in enumerate(zip(own, self._sent, strict=True))
            for name, value in group.items()
            if name not in sent or _differ(value, sent[name])
        ]
        if changes:
            self._sent = own
        return changes

    def send_changes(self) -> None:
        """Tell the ranks what has changed here since the last step, before steps of which they are not told."""
        changes = self._changes()
        if changes:
            Issued("optimizers.change", [Ref(self._own[0]), changes], [self._own[0]], 0).issue(self._view)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or overwrite them."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        recorder = self._view.engine.recorder
        for group in self.param_groups:
            for param in group["params"]:
                if param._n.__class__ is GraphLeaf:
                    if recorder is not None:
                        recorder.note_leaf(param._n)
                    param._n.has_grad, param._n.grad = False, None
        self._zero_grad.issue(self._view)

    def state_dict(self) -> dict[str, Any]:
        """The state, of sharded tensors that share its memory, and the hyperparameters; waits for their shapes."""
        groups, number = [], 0
        for group, own in zip(self.param_groups, self._hyperparameters(), strict=True):
            num = len(group["params"])
            groups.append({**own, "params": list(range(number, number + num))})
            number += num
        state: Remote[..., Any] = Remote(_STATE, None)  # another one each time, because a state may grow
        return {"state": state.run_on(self._view, (self._holder,), {}), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` of an optimizer of the same class has returned, of any mesh, or of the program.

        Raises:
            ValueError: it has other groups.
        """
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the groups of parameters have other lengths than those of the loaded state")
        refs: list[int] = []

        def sent(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            tensor: Any = leaf if leaf.__class__ is MeshTensor else put(leaf, self._view)
            kept.append(tensor)
            if tensor._h.view is not self._view:
                raise foreign(tensor, self._view)
            refs.append(tensor._h.number)
            return Ref(tensor._h.number)

        kept: list[Any] = []
        state = tree_map(sent, {int(place): values for place, values in state_dict["state"].items()})
        number = self._own[0]
        Issued("optimizers.load_state", [Ref(number), state], [number, *refs], 0).issue(self._view)
        for group, loaded in zip(self.param_groups, groups, strict=True):
            group.update({name: value for name, value in loaded.items() if name != "params"})


def _differ(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) or isinstance(other, torch.Tensor):
        return True  # a tensor may have changed in place
    return bool(value != other)
