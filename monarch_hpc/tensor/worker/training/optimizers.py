"""Optimizers that live on the ranks: each steps the parts of the parameters that its rank has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.worker.foreach import steps_at_once
from monarch_hpc.tensor.worker.sharded.calls import current_ops
from monarch_hpc.tensor.worker.sharded.modes import WithoutModes
from monarch_hpc.tensor.worker.sharded.settling import settle_gradients
from monarch_hpc.tensor.worker.training.placed import behind_local, placed_as, placements_on

__all__ = ["BY_ELEMENT", "HostedOptimizer", "build", "change", "load_state", "state", "step", "zero_grad"]

BY_ELEMENT = frozenset(
    {
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)
"""Optimizers that update each element by itself, so that they may be given parts, as plain tensors."""


class HostedOptimizer:
    """An optimizer on this rank; see `RemoteOptimizer`.

    Args:
        cls: its class.
        groups: groups of parameters, with sharded tensors in ``params``.
        options: what its constructor takes beside them.
    """

    def __init__(self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]) -> None:
        self._mesh = current_ops().mesh
        given = [tensor for group in groups for tensor in group["params"]]
        self._stand_ins = [getattr(tensor, "_stand_in", None) for tensor in given]
        self._params = [
            tensor if stand_in is None else stand_in.param
            for tensor, stand_in in zip(given, self._stand_ins, strict=True)
        ]
        places: dict[Any, list[int]] = {}
        for one in self._stand_ins:
            if one is not None:
                places.setdefault(one.gradients, []).append(one.place)
        self._owners, self._places = list(places), places
        by_element = cls in BY_ELEMENT
        # Through their memory it steps parts of sharded parameters: torch's fast forms are for plain tensors.
        self._stepped = [
            nn.Parameter(behind_local(param), param.requires_grad)
            if by_element and isinstance(param, DTensor)
            else param
            for param in self._params
        ]
        self._own = [param for param, one in zip(self._params, self._stand_ins, strict=True) if one is None]
        self._in_parts = [
            (param, part) for param, part in zip(self._params, self._stepped, strict=True) if part is not param
        ]
        stepped = iter(self._stepped)
        own_groups = [{**group, "params": [next(stepped) for _ in group["params"]]} for group in groups]
        self._is_plain = by_element or len(self._owners) > 0
        with self._context():
            self.optimizer = cls(own_groups, **options)
        given_groups = enumerate(self.optimizer.param_groups)
        self._left_open = {place for place, group in given_groups if by_element and group["foreach"] is None}
        for place in self._left_open:
            self._choose(place)

    def _choose(self, place: int) -> None:
        """Have the parameters of a group step at once, or one by one, where the program has not chosen."""
        group = self.optimizer.param_groups[place]
        group["foreach"] = None
        group["foreach"] = steps_at_once(type(self.optimizer).__name__, group, group["params"]) or None

    def _context(self) -> ExitStack:
        stack = ExitStack()
        if self._is_plain:
            stack.enter_context(WithoutModes())
            stack.enter_context(current_ops().world())
        return stack

    def step(self, changes: Sequence[tuple[int, str, Any]]) -> None:
        """Sum the gradients that are not summed yet, and step.

        Args:
            changes: of hyperparameters: number of the group, name, value.
        """
        for owner in self._owners:
            if owner.torn:
                raise RuntimeError(owner.torn)
            if owner.is_unsettled:
                with self._context():
                    owner.settle()
        if self._own:
            settle_gradients(self._own)
        self.change(changes)
        for param, stepped in self._in_parts:
            stepped.grad = None if param.grad is None else behind_local(param.grad)
        try:
            with self._context():
                self.optimizer.step()
        except BaseException as error:
            for owner in self._owners:
                owner.torn = (
                    f"a step of {type(self.optimizer).__name__} failed in the middle, so that only some parameters are "
                    f"changed: {type(error).__name__}: {error}; load a checkpoint"
                )
            raise
        finally:
            for _, stepped in self._in_parts:
                stepped.grad = None

    def change(self, changes: Sequence[tuple[int, str, Any]]) -> None:
        """Change hyperparameters; see `step`."""
        for place, name, value in changes:
            self.optimizer.param_groups[place][name] = value
            if name == "foreach":
                self._left_open.discard(place)
        for place in {place for place, _, _ in changes} & self._left_open:
            self._choose(place)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for owner, places in self._places.items():
            owner.drop(places)
        for param in self._own:
            param.grad = None

    # ---- state ----

    def state(self) -> dict[int, dict[str, Any]]:
        """The state by number of parameter; tensors that are like their parameter are sharded as it is."""
        found: dict[int, dict[str, Any]] = {}
        for place, (param, stepped) in enumerate(zip(self._params, self._stepped, strict=True)):
            own = self.optimizer.state.get(stepped)
            if own:
                found[place] = {name: self._placed(value, param, stepped) for name, value in own.items()}
        return found

    def _placed(self, value: Any, param: Any, stepped: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(value, DTensor):
            return placed_as(value, self._mesh, None)
        if value.shape == stepped.shape and value.dim():
            return placed_as(value.detach(), self._mesh, placements_on(self._mesh, param), tuple(param.shape))
        return placed_as(value, self._mesh, None)

    def load_state(self, loaded: dict[int, dict[str, Any]]) -> None:
        """Replace the state by one like that of `state`, placed in any way."""
        made: dict[Any, dict[str, Any]] = {}
        for place, values in loaded.items():
            param, stepped = self._params[place], self._stepped[place]
            made[stepped] = {name: self._own_part(value, param, stepped) for name, value in values.items()}
        self.optimizer.state.clear()
        self.optimizer.state.update(made)

    def _own_part(self, value: Any, param: Any, stepped: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        if value.shape == param.shape and value.dim():
            placed = value.redistribute(placements=placements_on(self._mesh, param))
            own = behind_local(placed).clone(memory_format=torch.preserve_format)
            if isinstance(stepped, DTensor):
                return placed_as(own, stepped.device_mesh, stepped.placements, tuple(stepped.shape))
            return own
        whole: torch.Tensor = value.full_tensor().detach().clone()
        return whole


# ---- what the program calls by name ----


def build(cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> HostedOptimizer:
    """Build an optimizer on this rank."""
    return HostedOptimizer(cls, groups, options)


def step(optimizer: HostedOptimizer, changes: Sequence[tuple[int, str, Any]] = ()) -> None:
    """See `HostedOptimizer.step`."""
    with torch.no_grad():
        optimizer.step(changes)


def change(optimizer: HostedOptimizer, changes: Sequence[tuple[int, str, Any]]) -> None:
    """Change hyperparameters; see `HostedOptimizer.step`."""
    optimizer.change(changes)


def zero_grad(optimizer: HostedOptimizer) -> None:
    """See `HostedOptimizer.zero_grad`."""
    optimizer.zero_grad()


def state(optimizer: HostedOptimizer) -> dict[int, dict[str, Any]]:
    """See `HostedOptimizer.state`."""
    return optimizer.state()


def load_state(optimizer: HostedOptimizer, loaded: dict[int, dict[str, Any]]) -> None:
    """See `HostedOptimizer.load_state`."""
    with torch.no_grad():
        optimizer.load_state(loaded)
