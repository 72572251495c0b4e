"""The ranks of an engine on which tensors live."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.tensor.ops.meta import TensorOperations

if TYPE_CHECKING:
    from monarch_hpc.tensor.stream.engine import TensorEngine

__all__ = ["View"]


class View:
    """Ranks of an engine on which tensors live, and the actors there.

    Args:
        engine: the engine of the procs.
        region: the ranks, in the mesh of procs.
        workers: their workers.
        operations: what is done with tensors of this view.

    Attributes:
        dead: numbers of values to free.
        entries: what is known of operations by cache key, see `tensor.ops.dispatch`.
        mesh: number of the template that describes a mesh with sharded tensors; 0 if each rank has values of its own.
    """

    __slots__ = ("__weakref__", "dead", "engine", "entries", "mesh", "operations", "ranks", "region", "workers")

    def __init__(
        self, engine: TensorEngine, region: Region, workers: ActorMesh[Any], operations: TensorOperations
    ) -> None:
        self.engine = engine
        self.region = region
        self.workers = workers
        self.operations = operations
        self.dead: deque[int] = deque()
        self.entries: dict[tuple[Any, ...], Any] = {}
        self.mesh = 0
        self.ranks = tuple(region.base_ranks())

    @property
    def name(self) -> str:
        """The mesh of procs in messages."""
        return self.engine.name

    def move(self, region: Region) -> None:
        """Be on other ranks from here on, so that all tensors are; the engine's lock is held."""
        self.region, self.ranks = region, tuple(region.base_ranks())
        self.workers = self.workers._viewing(region)
