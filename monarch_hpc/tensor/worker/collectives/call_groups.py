"""Process groups among the arguments of functions that the program calls on the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from monarch_hpc.tensor.stream.records import GroupSpec, MeshSpec
from monarch_hpc.tensor.worker.collectives.groups import Groups

__all__ = ["CallGroups"]


class CallGroups:
    """Makes the groups of one rank, each once in an epoch.

    Args:
        rank: rank in the mesh of procs.
        groups: the process groups of this rank.
    """

    def __init__(self, rank: int, groups: Groups) -> None:
        self._rank = rank
        self._groups = groups
        self._worlds: dict[tuple[int, tuple[int, ...]], Any] = {}

    @contextmanager
    def entered(self, arguments: Any) -> Iterator[Any]:
        """The arguments with groups of torch.distributed in place of their descriptions, which exist in this block."""
        specs = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, GroupSpec)]
        if not specs:
            yield arguments
            return
        made: dict[GroupSpec, Any] = {}
        with ExitStack() as stack:
            for spec in specs:
                if spec not in made:
                    stack.enter_context(self._world_of(spec))
                    made[spec] = dist.group.WORLD
            yield tree_map(lambda leaf: made[leaf] if isinstance(leaf, GroupSpec) else leaf, arguments)

    def _world_of(self, spec: GroupSpec) -> Any:
        ranks = next(ranks for ranks in spec.groups if self._rank in ranks)
        key = self._groups.epoch, ranks
        if key not in self._worlds:
            # Not before it is needed: DTensor takes most of a second to load.
            from monarch_hpc.tensor.worker.sharded.world import World

            mesh = MeshSpec(spec.key, ("call",), (len(ranks),), ranks, 0)
            self._worlds[key] = World(mesh, self._rank, self._groups)
        return self._worlds[key]
