"""The actors that a call goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from monarch_hpc.actor.casts.targets import CastRecord, OpenCast, Reduce
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
    """Takes the answers to a call of many actors.

    Attributes:
        cast: what was sent, if it went through the agents.
        reduce: how answers may be combined there; None for not at all.
    """

    cast: OpenCast | None
    reduce: Reduce | None

    def take(self, place: int, rank: int, given: Frame | MonarchError) -> None:
        """Take that of the actor at a place of the view, which has that base rank."""
        ...

    def where(self, place: int) -> str:
        """That actor and the endpoint, in words."""
        ...


class Sent(Pending, Protocol):
    """Who waits for the answer to a call that can be cancelled.

    Attributes:
        number: what `Runtime.cancel` takes, once the call was sent.
    """

    number: int


class Callee:
    """One actor on each proc of a view.

    Attributes:
        name: the name given to `spawn`.
        actor: its number, the same in every proc.
        procs: by base rank; those of the view at least.
        load: of all views of the mesh; None where there is nothing to choose from.
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
        return f"{self._who(place)}, endpoint {method}"

    def _who(self, place: int) -> str:
        rank = self.region.base_rank(place)
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}"

    def name_of(self, method: str) -> int:
        """What stands for an endpoint in what this process records."""
        number = self._names.get(method)
        if number is None:
            number = self._names[method] = current_runtime().recorder.names.endpoint(self.name, method)
        return number

    def choose(self) -> int:
        """The place of the actor that is least busy."""
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
            head: of *method*, see `actor.messages.payload.call_head`.
            pending: makes who waits for the answer of the actor at a place of the view, which has that base rank
                and is in that proc; None for a call that has no answers.
            taker: takes all answers, where none of them was made.
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
        """Send a call that is over at *end_s*, on the engine's clock; otherwise as `send`.

        Returns:
            The places of those whose mailboxes were full until then: they were not sent to.
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
        # First to those who take it at once: one full mailbox is to delay no other.
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
        try:
            sent = runtime.casts.send(
                Kind.CALL,
                self.region,
                self.procs,
                (self.actor, body, buffers),
                self._who if taker is None else taker.where,
                answer,
                end_s,
                None if taker is None else taker.reduce,
                written,
            )
        finally:
            if load is not None and sent is None:
                for rank in ranks:
                    load.end(rank)
        if taker is not None:
            taker.cast = sent
        return sent
