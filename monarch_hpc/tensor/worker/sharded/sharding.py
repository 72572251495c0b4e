"""The sharded tensors of one mesh on this rank: its device mesh, and how operators run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.groups import Groups
from monarch_hpc.tensor.worker.sharded.calls import entered, settled_grad
from monarch_hpc.tensor.worker.sharded.device_mesh import make_device_mesh, replace_groups
from monarch_hpc.tensor.worker.sharded.rules import ShardedOps

__all__ = ["Sharding"]


class Sharding:
    """What the worker of mesh tensors asks of a mesh with sharded tensors.

    Args:
        spec: the mesh.
        rank: this rank.
        groups: the process groups of this rank.

    Attributes:
        ops: how operators run.
    """

    def __init__(self, spec: MeshSpec, rank: int, groups: Groups) -> None:
        ranks = torch.tensor(spec.ranks).reshape(spec.sizes)
        self._key, self._groups = str(spec.key), groups
        self.ops = ShardedOps(make_device_mesh(ranks, spec.names, rank, self._key, groups.of), spec.seed)
        self.settled_grad = settled_grad

    def rejoin(self) -> None:
        """Replace the process groups, of which the tensors here go on to use the names."""
        replace_groups(self.ops.mesh, self._key, self._groups.of)

    def entered(self) -> AbstractContextManager[None]:
        """Run a frame."""
        return entered(self.ops)

    def wrap(self, value: torch.Tensor) -> DTensor:
        """The tensor of which each rank has the whole."""
        return self.ops.wrap(value)

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
