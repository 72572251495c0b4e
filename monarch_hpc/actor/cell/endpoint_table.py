"""What an actor knows of the calls that it gets: read once for all calls of one endpoint of one view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.actor.cell.recording import CellRecorder
from monarch_hpc.actor.context import Context, ProcInfo
from monarch_hpc.actor.endpoint import EndpointMethod, endpoints_of, unmarked_method
from monarch_hpc.actor.messages.payload import unpack_head
from monarch_hpc.core.shape import Point, Region

__all__ = ["EndpointEntry", "EndpointTable", "place_of"]


class EndpointEntry:
    """One endpoint of one view.

    Attributes:
        name: stands for the endpoint in what is recorded.
        plain: the bound method, where it is simply called.
        context: of the actor while it handles such a call.
    """

    __slots__ = ("context", "endpoint", "method", "name", "plain")

    def __init__(
        self,
        method: str,
        endpoint: EndpointMethod[..., object],
        plain: Callable[..., object] | None,
        context: Context,
        name: int,
    ) -> None:
        self.method = method
        self.name = name
        self.endpoint = endpoint
        self.plain = plain
        self.context = context


class EndpointTable(dict[bytes, EndpointEntry]):
    """By the head of a call, see `actor.messages.payload.call_head`; made when the first such call comes."""

    def __init__(self, records: CellRecorder) -> None:
        self._records = records
        self.endpoints: dict[str, EndpointMethod[..., object]] = {}
        self.target: object = None
        """The actor's object, while there is one."""
        self.base_context: Context | None = None
        """The context of the constructor and the hooks."""

    def begin(self, name: str, cls: type, rank: Point, info: ProcInfo, actor: int) -> Context:
        """Serve an actor of *cls*; return the context of its constructor.

        Args:
            rank: in the mesh that was spawned.
            actor: number of the actor.
        """
        self.endpoints = endpoints_of(cls)
        self._records.spawned(actor, name, rank.rank)
        self.base_context = Context(name, rank, rank, info, actor, self._records.mark)
        return self.base_context

    def __missing__(self, head: bytes) -> EndpointEntry:
        base = self.base_context
        assert base is not None
        method, region = unpack_head(head)
        endpoint = self.endpoints.get(method) or unmarked_method(type(self.target), method)
        if endpoint is None:
            raise AttributeError(f"{base.actor_name} has no endpoint {method!r}; mark the method with @endpoint")
        # Bound once; but not where a turn keeps it, which may live in the object: the two would keep each other.
        plain = endpoint.__get__(self.target, type(self.target)) if endpoint.plain else None
        context = replace(base, message_rank=place_of(base.proc, region))
        entry = self[head] = EndpointEntry(method, endpoint, plain, context, self._records.name(method))
        return entry

    def close(self) -> None:
        """Let go of the actor's object."""
        self.clear()
        self.target = None


def place_of(info: ProcInfo, region: Region) -> Point:
    """Where the process is in *region* of its mesh."""
    return region.extent.point(region.rank_of(info.rank))
