"""The creator of an actor, the actor or program that spawned it, as the message that spawns names it.

It travels as plain values, which take the serializer's fast path, and is unpacked only if an actor reads it.
"""

from __future__ import annotations

from typing import Any, cast

from monarch_hpc.actor.context import Context
from monarch_hpc.actor.messages.payload import region_of, view_of
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Point, Region

__all__ = ["Creator", "pack_creator", "unpack_creator"]


@dataclass(frozen=True, slots=True)
class Creator:
    """The actor or program that spawned another actor.

    Attributes:
        class_name: module and name of its class; empty for a program.
        region: the place of its actor mesh among the procs of its proc mesh.
        proc: its process.
        creator: its own creator, packed; None for a program.
    """

    name: str
    class_name: str
    region: Region
    proc: ProcRef
    creator: object

    @property
    def rank(self) -> Point:
        """Its coordinates in the spawned mesh."""
        return self.region.extent.point(self.region.rank_of(self.proc.rank))


def pack_creator(context: Context, own: ProcRef) -> tuple[object, ...]:
    """Return what `unpack_creator` takes, for actors that the code of *context* spawns in the process *own*."""
    region = context.region or own.region
    proc = (
        *(own.mesh, own.rank, own.host, own.host_rank, own.pid, own.incarnation),
        *(own.addresses, own.restarts, own.allocation),
    )
    return context.actor_name, context.class_name, view_of(region), proc, context.creator


def unpack_creator(packed: object) -> Creator:
    """Return the creator that `pack_creator` packed."""
    name, class_name, view, proc, creator = cast(tuple[str, str, Any, tuple[Any, ...], object], packed)
    return Creator(name, class_name, region_of(view), ProcRef(*proc), creator)
