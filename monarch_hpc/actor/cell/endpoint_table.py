"""Caches the parsed heads of calls: each endpoint of each view is resolved once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.actor.cell.recording import CellRecorder
from monarch_hpc.actor.context import Context, ProcInfo
from monarch_hpc.actor.endpoint import EndpointMethod, endpoints_of, unmarked_method
from monarch_hpc.actor.endpoint_wrappers import bind
from monarch_hpc.actor.fault import print_error
from monarch_hpc.actor.messages.payload import Spawned, unpack_head
from monarch_hpc.core.shape import Point, Region
from monarch_hpc.core.text.description import qualified_name, trace_of

__all__ = ["EndpointEntry", "EndpointTable", "place_of"]


class EndpointEntry:
    """One endpoint of one view.

    Attributes:
        name: number of the endpoint's name in the records.
        plain: the bound method, if it only needs to be called; else None.
        context: the actor's context while it handles such a call.
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
    """Endpoints by the head of a call, see `actor.messages.payload.call_head`; filled at the first such call."""

    def __init__(self, records: CellRecorder) -> None:
        self._records = records
        self.endpoints: dict[str, EndpointMethod[..., object]] = {}
        self.target: object = None
        """The actor's object; None before construction and after the end."""
        self.base_context: Context | None = None
        """The context of the constructor and the hooks."""

    def begin(self, spawned: Spawned, cls: type, info: ProcInfo, actor: int) -> Context:
        """Set up the table for an actor of *cls*; return the context of its constructor.

        Args:
            actor: the actor's number.
        """
        self.endpoints = endpoints_of(cls)
        rank = place_of(info, spawned.region)
        self._records.spawned(actor, spawned.name, rank.rank)
        self.base_context = Context(
            spawned.name,
            rank,
            rank,
            info,
            actor,
            self._records.mark,
            class_name=qualified_name(cls),
            region=spawned.region,
            creator=spawned.creator,
        )
        return self.base_context

    def __missing__(self, head: bytes) -> EndpointEntry:
        base = self.base_context
        assert base is not None
        method, region = unpack_head(head)
        endpoint = self.endpoints.get(method) or unmarked_method(type(self.target), method)
        if endpoint is None:
            raise AttributeError(f"{base.actor_name} has no endpoint {method!r}; mark the method with @endpoint")
        # Bound once, but only if plain: an `Invocation` may be stored in the object, and the two would form a cycle.
        plain = bind(endpoint, self.target) if endpoint.plain else None
        whole = region == base.region
        context = base if whole else replace(base, message_rank=place_of(base.proc, region))
        entry = self[head] = EndpointEntry(method, endpoint, plain, context, self._records.name(method))
        return entry

    @property
    def resources(self) -> list[Callable[[], object]]:
        """What the actor owns, see `Context.own`."""
        return [] if self.base_context is None else self.base_context.resources

    def close_resources(self, where: str) -> None:
        """Close what the actor *where* owns; an exception is printed, and the others are closed."""
        resources = self.resources
        while resources:
            try:
                resources.pop()()
            except BaseException as error:  # noqa: BLE001 user code; the actor ends all the same
                print_error(f"{where}: a resource could not be closed:\n{trace_of(error)}")

    def close(self) -> None:
        """Release the actor's object."""
        self.clear()
        self.target = None


def place_of(info: ProcInfo, region: Region) -> Point:
    """The coordinates of this process in *region* of its mesh."""
    return region.extent.point(region.rank_of(info.rank))
