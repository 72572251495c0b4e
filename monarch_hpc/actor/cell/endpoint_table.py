"""What an actor knows of the calls that it gets: read once for all calls of one endpoint of one view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.actor.cell.recording import CellRecorder
from monarch_hpc.actor.context import Context, ProcInfo
from monarch_hpc.actor.endpoint import EndpointMethod, endpoints_of, unmarked
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

    __slots__ = ("context", "marked", "method", "name", "plain")

    def __init__(
        self,
        method: str,
        marked: EndpointMethod[..., object],
        plain: Callable[..., object] | None,
        context: Context,
        name: int,
    ) -> None:
        self.method = method
        self.name = name
        self.marked = marked
        self.plain = plain
        self.context = context


class EndpointTable(dict[bytes, EndpointEntry]):
    """By the head of a call, see `actor.messages.payload.call_head`; made when the first such call comes."""

    def __init__(self, journal: CellRecorder) -> None:
        self._journal = journal
        self.endpoints: dict[str, EndpointMethod[..., object]] = {}
        self.target: object = None
        """The actor's object, while there is one."""
        self.born: Context | None = None
        """The context of the constructor and the hooks."""

    def begin(self, name: str, cls: type, rank: Point, info: ProcInfo, actor: int) -> Context:
        """Serve an actor of *cls*; return the context of its constructor.

        Args:
            rank: in the mesh that was spawned.
            actor: number of the actor.
        """
        self.endpoints = endpoints_of(cls)
        self._journal.born(actor, name, rank.rank)
        self.born = Context(name, rank, rank, info, actor, self._journal.mark)
        return self.born

    def __missing__(self, head: bytes) -> EndpointEntry:
        born = self.born
        assert born is not None
        method, region = unpack_head(head)
        marked = self.endpoints.get(method) or unmarked(type(self.target), method)
        if marked is None:
            raise AttributeError(f"{born.actor_name} has no endpoint {method!r}; mark the method with @endpoint")
        # Bound once; but not where a turn keeps it, which may live in the object: the two would keep each other.
        plain = marked.__get__(self.target, type(self.target)) if marked.plain else None
        context = replace(born, message_rank=place_of(born.proc, region))
        entry = self[head] = EndpointEntry(method, marked, plain, context, self._journal.name(method))
        return entry

    def close(self) -> None:
        """Let go of the actor's object."""
        self.clear()
        self.target = None


def place_of(info: ProcInfo, region: Region) -> Point:
    """Where the process is in *region* of its mesh."""
    return region.extent.point(region.rank_of(info.rank))
