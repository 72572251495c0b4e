"""The actors that a call is sent to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from monarch_hpc.actor.casts.targets import CastMessage, CastRecord, Delivery, OpenCast, Reduce
from monarch_hpc.actor.context import context
from monarch_hpc.actor.messages.payload import pack_call
from monarch_hpc.actor.messages.pending import Pending
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import HELD, Runtime, current_runtime
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.calls.load import Load
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["AnswerTaker", "Callee", "Sent"]


class AnswerTaker(Protocol):
    """Receives the answers to a call of many actors.

    Attributes:
        cast: the cast that carried the call; None if the call was sent to each proc directly.
        reduce: how agents may combine answers; None if they may not.
    """

    cast: OpenCast | None
    reduce: Reduce | None

    def take(self, place: int, rank: int, given: Frame | MonarchError) -> None:
        """Take the answer of the actor at *place* of the view, which has base rank *rank*."""
        ...

    def where(self, place: int) -> str:
        """The actor at *place* and the endpoint, in words."""
        ...


class Sent(Pending, Protocol):
    """The recipient of the answer to one call that can be cancelled.

    Attributes:
        number: number of the call for `Runtime.cancel`, once it was sent.
    """

    number: int


class Callee:
    """One actor on each proc of a view.

    Attributes:
        name: the name passed to `ProcMesh.spawn`.
        actor: number of the actor, the same in every proc.
        region: the view.
        procs: procs by base rank; at least those of the view.
        load: in-flight calls by rank, shared by all views of the mesh; None if there is only one actor.
    """

    def __init__(
        self, name: str, actor: int, region: Region, procs: Mapping[int, ProcRef], load: Load | None = None
    ) -> None:
        self.name = name
        self.actor = actor
        self.region = region
        self.procs = procs
        self._names: dict[str, int] = {}
        self.load = load if load is not None or len(region) == 1 else Load()

    def __str__(self) -> str:
        return f"{self.name} ({self.region.extent})"

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The base ranks of the view, in its order."""
        return tuple(self.region.base_ranks())

    def where(self, method: str, place: int) -> str:
        """The actor at *place* of the view and one of its endpoints, in words."""
        return f"{self._actor_text(place)}, endpoint {method}"

    def _actor_text(self, place: int) -> str:
        rank = self.region.base_rank(place)
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}"

    def name_of(self, method: str) -> int:
        """The number that stands for an endpoint in this process's call records."""
        number = self._names.get(method)
        if number is None:
            number = self._names[method] = current_runtime().recorder.names.endpoint(self.name, method)
        return number

    def choose(self) -> int:
        """The place of the actor with the fewest calls of this process in flight."""
        return 0 if self.load is None else self.load.choose(self.region)

    def send(
        self,
        method: str,
        head: bytes,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        pending: Callable[[int, int, ProcRef], Sent] | None,
        taker: AnswerTaker | None = None,
    ) -> None:
        """Send one call to every actor; the arguments are serialized once.

        Args:
            method: name of the endpoint.
            head: head of the message for *method*, see `actor.messages.payload.call_head`.
            args: positional arguments of the endpoint.
            kwargs: keyword arguments of the endpoint.
            pending: called with place, base rank and proc of an actor, creates the recipient of its answer; None for a
                call without answers.
            taker: receives the answers of a cast, for which *pending* is not called.
        """
        runtime = current_runtime()
        body, buffers = pack_call(head, args, kwargs)
        name = self.name_of(method)
        ranks = self.ranks
        if len(ranks) > runtime.casts.max_direct and self._cast(runtime, name, body, buffers, taker):
            return
        for place, rank in enumerate(self.ranks):
            proc = self.procs[rank]
            if pending is None:
                runtime.call(proc, self.actor, body, buffers, None, name=name)
            else:
                sent = pending(place, rank, proc)
                sent.number = runtime.call(proc, self.actor, body, buffers, sent, name=name)

    def send_by(
        self,
        method: str,
        head: bytes,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        pending: Callable[[int, int, ProcRef], Sent] | None,
        end_s: float,
        taker: AnswerTaker | None = None,
    ) -> list[int]:
        """Send a call that ends at *end_s* on the engine's clock; otherwise as `send`.

        Returns:
            The places of the actors whose mailboxes were full until then; nothing was sent to them.
        """
        runtime = current_runtime()
        clock = runtime.engine.clock
        body, buffers = pack_call(head, args, kwargs)
        name = self.name_of(method)
        if len(self.ranks) > runtime.casts.max_direct and (
            cast := self._cast(runtime, name, body, buffers, taker, end_s)
        ):
            return list(range(len(self.ranks))) if cast.held else []
        held = list(range(len(self.ranks)))
        waiting = {
            place: None if pending is None else pending(place, rank, self.procs[rank])
            for place, rank in enumerate(self.ranks)
        }
        # First the mailboxes with room, then the full ones, so that a full mailbox delays no other actor.
        for until_s in (0.0, end_s):
            for place in list(held):
                if until_s and clock() >= end_s:
                    break
                sent, proc = waiting[place], self.procs[self.ranks[place]]
                number = runtime.call(proc, self.actor, body, buffers, sent, until_s, end_s, name)
                if number != HELD:
                    held.remove(place)
                    if sent is not None:
                        sent.number = number
        return held

    def _cast(
        self,
        runtime: Runtime,
        name: int,
        body: bytes,
        buffers: list[Buffer],
        taker: AnswerTaker | None,
        end_s: float | None = None,
    ) -> OpenCast | None:
        ranks, load = self.ranks, None if taker is None else self.load
        answer = None if taker is None else lambda place, given: taker.take(place, ranks[place], given)
        if load is not None:
            load.begin_all(ranks)
        sent = None
        written = None if taker is None else CastRecord(context().mark, name)
        if written is None:
            runtime.recorder.sent(0, context().mark, name, 0, len(body), self.actor)
        delivery = Delivery(
            self._actor_text if taker is None else taker.where,
            answer,
            end_s,
            None if taker is None else taker.reduce,
            written,
        )
        try:
            sent = runtime.casts.cast(
                self.region, self.procs, CastMessage(Kind.CALL, self.actor, body, buffers), delivery
            )
        finally:
            if load is not None and sent is None:
                for rank in ranks:
                    load.end(rank)
        if taker is not None:
            taker.cast = sent
        return sent
