"""The world of torch.distributed for code of modules: DDP, FSDP, tensor parallelism and checkpoints look for one.

It is in force only while such code runs, on the worker's thread: a proc's default process group belongs to the user.
All that this package uses of torch's private names about that group is here.
"""

from __future__ import annotations

import datetime
import hashlib
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.collectives.backend import making, register_backend
from monarch_hpc.tensor.worker.collectives.group import BACKEND
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.named import NamedGroup
from monarch_hpc.tensor.worker.collectives.staging import device_of

__all__ = ["World"]

_c10d: Any = dist.distributed_c10d
_FIRST_GROUP_BITS = 24
"""Bits of a group's name that number the groups of one world; the others tell worlds apart."""


class World:
    """The ranks of one mesh as a world: rank 0 to n - 1, row by row; to be entered by the worker's thread alone.

    Args:
        spec: the mesh.
        rank: this rank in the mesh of procs.
        groups: the process groups of this rank.

    Attributes:
        mesh: a DeviceMesh of all ranks, with the dimensions of the mesh.
        waits: for waits of code of modules that are not in a collective.
    """

    def __init__(self, spec: MeshSpec, rank: int, groups: Groups) -> None:
        self.ranks = spec.ranks
        self._groups = groups
        self.waits = groups.waits
        self._depth = 0
        self._saved: Any = None
        name = f"{groups.epoch}-{spec.key}-{spec.ranks}-{spec.names}-{spec.sizes}"
        digest = hashlib.blake2b(name.encode(), digest_size=5).digest()  # the same on all ranks
        self._own = None, int.from_bytes(digest, "big") << _FIRST_GROUP_BITS
        register_backend()
        with self:
            dist.init_process_group(
                BACKEND,
                store=groups.store(spec.ranks[0], f"world/{name}/"),
                rank=spec.ranks.index(rank),
                world_size=len(spec.ranks),
                timeout=datetime.timedelta(seconds=groups.timeout_s),
            )
            device_of(spec.device)  # torch would choose a GPU by the rank, did it not find one in use
            self.mesh = init_device_mesh(spec.device, spec.sizes, mesh_dim_names=spec.names)

    def group_of(self, places: tuple[int, ...]) -> NamedGroup:
        """The process group of some ranks of this world; of all if empty."""
        return self._groups.of(tuple(self.ranks[place] for place in places) if places else self.ranks)

    def _make_group(self, options: Any) -> NamedGroup:
        """A group that code of modules makes, on the worker's connections, whose waits an abort ends."""
        return self.group_of(tuple(options.global_ranks_in_group)).again()

    def __enter__(self) -> World:
        if not self._depth:
            state = _c10d._world
            if state.default_pg is not None and not making:
                raise RuntimeError(
                    "this proc has a default process group of torch.distributed, which an actor made: modules that "
                    "live on the ranks need procs without one"
                )
            self._saved = state.default_pg, state.group_count
            state.default_pg, state.group_count = self._own
        self._depth += 1
        making.append(self._make_group)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        making.pop()
        self._depth -= 1
        if not self._depth:
            state = _c10d._world
            self._own = state.default_pg, state.group_count
            state.default_pg, state.group_count = self._saved
