"""Optimizers in captured steps: described for the ranks, checked for changes, and kept up to date in the program."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch

from monarch_hpc.tensor.capture.recording import CannotCapture
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import OptimizerSpec, Ref, bits_of

__all__ = ["OptimizerState", "optimizer_spec"]

_OPTIMIZERS = frozenset({"Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"})
"""Those whose state is written in place, but for the number of steps."""


def optimizer_spec(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any, view: View) -> OptimizerSpec:
    """Describe an optimizer before a step.

    Raises:
        CannotCapture: the ranks cannot take its steps.
    """
    cls = type(optimizer)
    if getattr(torch.optim, cls.__name__, None) is not cls or cls.__name__ not in _OPTIMIZERS:
        raise CannotCapture(f"{cls.__name__} is not one of torch's optimizers that can step in a captured step")
    if any(one is not None for one in (*args, *kwargs.values())):
        raise CannotCapture(f"{cls.__name__}.step is called with a closure")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise CannotCapture(f"{cls.__name__} has hooks of its steps")
    groups, floats, states = [], [], []
    for place, group in enumerate(optimizer.param_groups):
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        for name, value in options.items():
            if type(value) is float:
                floats.append((place, name, -1))
            elif type(value) is tuple and all(type(one) is float for one in value):
                floats += [(place, name, at) for at in range(len(value))]
            elif not (value is None or type(value) in (bool, int, str, tuple)):
                raise CannotCapture(f"{cls.__name__} has an option {name} that is a {type(value).__name__}")
        numbers = []
        for parameter in group["params"]:
            if parameter.__class__ is not MeshTensor or parameter._h.view is not view:
                raise CannotCapture(f"{cls.__name__} has parameters that are not on {view.region.extent}")
            numbers.append(parameter._h.number)
            state = optimizer.state.get(parameter, {})
            states.append({name: _entry(cls.__name__, name, value, view) for name, value in state.items()})
        groups.append((tuple(numbers), options))
    return OptimizerSpec(cls.__name__, tuple(groups), tuple(floats), tuple(states))


def _entry(cls: str, name: str, value: Any, view: View) -> Any:
    if value.__class__ is MeshTensor:
        if value._h.view is not view:
            raise CannotCapture(f"{cls} has a {name!r} on other ranks than its parameters")
        return Ref(value._h.number)
    if isinstance(value, torch.Tensor):
        if name != "step" or value.numel() != 1:
            raise CannotCapture(f"{cls} has a {name!r} that is a tensor of the program")
        with torch._C.DisableTorchFunction():
            return value.clone()
    if value is None:
        return None
    raise CannotCapture(f"{cls} has a {name!r} that is a {type(value).__name__}")


def _is_alike(given: Any, value: Any) -> bool:
    """Whether both are floats, or tuples of as many."""
    if type(value) is tuple:
        return type(given) is tuple and len(given) == len(value) and all(type(one) is float for one in given)
    return type(given) is type(value) is float


def _counts(steps: list[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Numbers of steps, each with the tensors that have it."""
    found: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for step in steps:
        found.setdefault((float(step), step.dtype, step.shape, step.device), []).append(step)
    return [(alike[0].detach().clone(), alike) for alike in found.values()]


class OptimizerState:
    """An optimizer that takes steps on the ranks.

    Args:
        optimizer: the optimizer, right after a step.
        spec: its description, of the same moment.
        before: likewise, of the moment before the step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, spec: OptimizerSpec, before: OptimizerSpec) -> None:
        self._optimizer = optimizer
        self._floats = spec.floats
        self._groups = [
            (group, dict(options)) for group, (_, options) in zip(optimizer.param_groups, spec.groups, strict=True)
        ]
        self._parameters = [list(group["params"]) for group in optimizer.param_groups]
        self._varying = {(group, name) for group, name, _ in spec.floats}
        self._state: list[tuple[dict[str, Any], str, Any]] = []
        self._steps: list[torch.Tensor] = []
        self._counts: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self._versions: list[int] = []
        parameters = [parameter for group in self._parameters for parameter in group]
        for parameter, old, new in zip(parameters, before.state, spec.state, strict=True):
            if old.keys() != new.keys():
                raise CannotCapture("the optimizer has made its state in this call", is_final=False)
            state = optimizer.state[parameter] if new else {}
            for name, value in state.items():
                self._state.append((state, name, value))
                if isinstance(value, torch.Tensor) and value.__class__ is not MeshTensor:
                    moved = float(new[name]) - float(old[name])
                    if moved not in (0.0, 1.0):
                        raise CannotCapture(f"the optimizer has changed its step count by {moved}")
                    if moved:
                        self._steps.append(value)
        self._held = tuple(zip(*self._state, strict=True)) or ((), (), ())
        self.follow()

    def is_unchanged(self) -> bool:
        """Whether nothing but floats among its options was changed since the last replay."""
        groups = self._optimizer.param_groups
        if len(groups) != len(self._groups) or any(
            group is not known for group, (known, _) in zip(groups, self._groups, strict=True)
        ):
            return False
        for place, (group, options) in enumerate(self._groups):
            if len(group["params"]) != len(self._parameters[place]):
                return False
            for name, value in options.items():
                given = group.get(name)
                if given != value and not ((place, name) in self._varying and _is_alike(given, value)):
                    return False
            if not all(map(is_, group["params"], self._parameters[place])):
                return False
        holders, names, values = self._held
        if not all(map(is_, map(dict.get, holders, names), values)):
            return False
        return [step._version for step in self._steps] == self._versions

    def floats(self) -> list[int]:
        """The floats among its options, as a record carries them."""
        found = []
        for place, name, at in self._floats:
            value = self._groups[place][0][name]
            found.append(bits_of(value if at < 0 else value[at]))
        return found

    def advance(self) -> None:
        """Count a step."""
        if self._steps:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for count, steps in self._counts:
                    count.add_(1.0)
                    torch._foreach_copy_(steps, [count] * len(steps))  # in a quarter of the time of adding to each
                self._versions = [step._version for step in self._steps]

    def follow(self) -> None:
        """Note that a step was counted."""
        with torch._C.DisableTorchFunction():
            self._versions = [step._version for step in self._steps]
            self._counts = _counts(self._steps)
