"""The sharded tensors of one mesh on this rank: its device mesh, and how operators run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.staging import device_of
from monarch_hpc.tensor.worker.sharded.calls import entered
from monarch_hpc.tensor.worker.sharded.communication import CommunicationCounter
from monarch_hpc.tensor.worker.sharded.device_mesh import bare_device_mesh, make_device_mesh, replace_groups
from monarch_hpc.tensor.worker.sharded.modes import WithoutModes
from monarch_hpc.tensor.worker.sharded.propagation import remember_propagated
from monarch_hpc.tensor.worker.sharded.rules import ShardedOps
from monarch_hpc.tensor.worker.sharded.settling import is_settled, settle_gradients
from monarch_hpc.tensor.worker.sharded.world import World
from monarch_hpc.tensor.worker.sharded.wrapping import wrapped
from monarch_hpc.tensor.worker.values import Values

__all__ = ["Sharding"]


class Sharding:
    """What the worker of mesh tensors asks of a mesh with sharded tensors.

    Args:
        spec: the mesh.
        rank: this rank.
        groups: the process groups of this rank.

    Attributes:
        spec: the mesh.
        ops: how operators run.
        held: the mesh of values that this rank has, and its spec: the former one until they are made again in a heal.
    """

    def __init__(self, spec: MeshSpec, rank: int, groups: Groups) -> None:
        remember_propagated()
        self._rank, self._groups = rank, groups
        self.spec = spec
        self.ops = ShardedOps(make_device_mesh(spec, rank, groups.of), spec.seed, device=device_of(spec.device))
        self.held: tuple[Any, MeshSpec] = self.ops.mesh, spec
        # DTensor keeps results on each, and compares meshes by their ranks: those of the same must be one object.
        self._meshes: dict[MeshSpec, Any] = {spec: self.ops.mesh}
        self._unsummed: dict[int, None] = {}
        self.ops.world = cache(partial(World, spec, rank, groups))

    def note_backward(self, leaves: list[int]) -> None:
        """Note that a backward pass has added to the gradients of leaves."""
        self._unsummed.update(dict.fromkeys(leaves))

    def grad_of(self, number: int, values: Values) -> Any:
        """The gradient of a leaf, summed over ranks and placed as the leaf is; None if there is none."""
        stand_in = getattr(values[number], "_stand_in", None)
        if stand_in is not None:
            return stand_in.grad()
        grad = self.settled_grad(number, values)
        if grad is not None:
            return grad
        if number in self._unsummed:
            settle_gradients([leaf for one in self._unsummed if _is_own_leaf(leaf := values.get(one))])
            self._unsummed.clear()
        else:
            settle_gradients([values[number]])
        return values[number].grad

    def settled_grad(self, number: int, values: Values) -> DTensor | None:
        """The gradient of a leaf where there is nothing to sum; None if there is, or no gradient here."""
        if number in self._unsummed or values.grads:
            return None
        leaf = values.get(number)
        grad = getattr(leaf, "grad", None)
        if not isinstance(leaf, DTensor) or not isinstance(grad, DTensor):
            return None
        return grad if is_settled(grad, leaf) else None

    def settle(self, leaves: list[int], values: Values) -> None:
        """Sum all gradients that are not summed yet, and those of some leaves, so that `grad_of` needs nobody else."""
        numbers = dict.fromkeys((*self._unsummed, *leaves))
        settle_gradients([leaf for number in numbers if _is_own_leaf(leaf := values.get(number))])
        self._unsummed.clear()

    def set_grad(self, tensor: Any, value: Any) -> None:
        """Replace the gradient of a leaf."""
        stand_in = getattr(tensor, "_stand_in", None)
        if stand_in is not None:
            stand_in.set_grad(value)
        else:
            tensor.grad = value

    def require_grad(self, tensor: Any, flag: bool) -> None:
        """Change whether a leaf requires a gradient."""
        stand_in = getattr(tensor, "_stand_in", None)
        if stand_in is not None:
            stand_in.require_grad(flag)
        else:
            tensor.requires_grad_(flag)

    @property
    def counter(self) -> CommunicationCounter | None:
        """Counts the collectives of operations; None if nobody asks."""
        return self.ops.counter

    def rejoin(self, spec: MeshSpec) -> None:
        """Replace the process groups, of which tensors go on to use the names; for other ranks, the mesh, too."""
        mesh = self._meshes.get(spec)
        if mesh is None:
            mesh = self._meshes[spec] = bare_device_mesh(spec, self._rank)
        replace_groups(mesh, spec, self._groups.of)
        self.spec, self.ops.mesh = spec, mesh
        self.ops.world = cache(partial(World, spec, self._rank, self._groups))

    def note_moved(self) -> None:
        """Note that all values are on the present mesh."""
        self.held = self.ops.mesh, self.spec

    def forget_gradients(self) -> None:
        """Note that all gradients were dropped."""
        self._unsummed.clear()

    def entered(self) -> AbstractContextManager[None]:
        """Run a frame."""
        return entered(self.ops)

    def wrap(self, value: torch.Tensor) -> DTensor:
        """The tensor of which each rank has the whole."""
        return self.ops.wrap(value)

    def first_gradient(self, loss: Any) -> DTensor | None:
        """Where a backward pass begins: 1, of a single number; DTensor would work out how it is placed, each time."""
        if not isinstance(loss, DTensor) or loss.dim() or loss.device_mesh is not self.ops.mesh:
            return None
        with WithoutModes():
            return wrapped(
                torch.ones((), dtype=loss.dtype, device=self.ops.device), self.ops.mesh, self.ops.replicated, (), ()
            )

    def check_results(self, tensors: list[Any]) -> None:
        """Refuse tensors of this rank alone among the results of a function.

        Raises:
            TypeError: there is one.
        """
        for tensor in tensors:
            if not isinstance(tensor, DTensor):
                raise TypeError(
                    f"the function returned a tensor of this rank alone, of shape {tuple(tensor.shape)}: return what "
                    "it makes of its arguments, which are DTensors, or DTensor.from_local(...)"
                )


def _is_own_leaf(leaf: Any) -> bool:
    return isinstance(leaf, DTensor) and getattr(leaf, "_stand_in", None) is None
