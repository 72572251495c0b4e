"""The actors that a call is sent to, and the answers that it awaits."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from monarch_hpc.actor.casts.targets import CastMessage, CastRecord, Delivery, OpenCast, Reduce
from monarch_hpc.actor.context import context
from monarch_hpc.actor.messages.payload import pack_call
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import HELD, Runtime, current_runtime
from monarch_hpc.core.errors import ActorDied, CallTimeout, MonarchError, SpawnError
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.calls.answer import CallOptions, late
from monarch_hpc.mesh.calls.load import Load
from monarch_hpc.mesh.launch import DeferredSend, Launch
from monarch_hpc.wire.frames import Buffer, Frame, Kind, size_of

__all__ = ["Answers", "Callee"]


class Callee:
    """One actor on each proc of a view.

    Attributes:
        name: the name passed to `ProcMesh.spawn`.
        actor: number of the actor, the same in every proc.
        region: the view.
        procs: procs by base rank; at least those of the view.
        launch: the launch of the procs, if calls may have to wait for it.
        load: in-flight calls by rank, shared by all views of the mesh; None if there is only one actor.
    """

    def __init__(
        self, name: str, actor: int, region: Region, procs: Mapping[int, ProcRef], load: Load | None = None
    ) -> None:
        self.name = name
        self.actor = actor
        self.region = region
        self.procs = procs
        self.launch = procs if type(procs) is Launch else None
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

    def where_all(self, method: str, places: Sequence[int]) -> str:
        """The actors at *places*, of which only the first is named, and one of their endpoints, in words."""
        first, num = self._actor_text(places[0]), len(places)
        named = first if num == 1 else f"{num} actors: {first.removeprefix('actor ')} and {num - 1} more"
        return f"{named}, endpoint {method}"

    def _actor_text(self, place: int) -> str:
        rank = self.region.base_rank(place)
        host = self.procs[rank].host if self.launch is None else self.launch.host(rank)
        return f"actor {self.name}[{rank}] on {host}"

    def name_of(self, method: str) -> int:
        """The number that stands for an endpoint in this process's call records."""
        number = self._names.get(method)
        if number is None:
            number = self._names[method] = current_runtime().recorder.names.endpoint(self.name, method)
        return number

    def defer(self, send: DeferredSend, body: bytes, buffers: Sequence[Buffer]) -> bool:
        """Have a message sent in its turn if the procs start; see `Launch.defer`."""
        if self.launch is None:
            return False
        if self.launch.defer(send, body, buffers):
            return True
        # The actors live in these procs, also when others replace them in their mesh.
        procs = {rank: self.procs[rank] for rank in self.ranks}
        self.procs, self.launch = current_runtime().incarnations.of(self.actor, procs), None
        return False

    def note_seen(self) -> None:
        """Note that a failure to start the procs reaches a caller."""
        if self.launch is not None:
            self.launch.note_seen()

    def choose(self) -> int:
        """The place of the actor with the fewest calls of this process in flight."""
        if self.load is None:
            return 0
        return self.load.choose(self.region, self.procs)

    def send(
        self,
        method: str,
        head: bytes,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        answers: Answers | None,
    ) -> None:
        """Send one call to every actor; the arguments are serialized once.

        Args:
            method: name of the endpoint.
            head: head of the message for *method*, see `actor.messages.payload.call_head`.
            args: positional arguments of the endpoint.
            kwargs: keyword arguments of the endpoint.
            answers: receives the answers; None for a call without answers.
        """
        runtime = current_runtime()
        body, buffers = pack_call(head, args, kwargs)
        name = self.name_of(method)
        if self.launch is not None:
            later = self._later(answers, lambda copies: self._send(runtime, name, body, copies, answers))
            if self.defer(later, body, buffers):
                return
        self._send(runtime, name, body, buffers, answers)

    def _send(
        self, runtime: Runtime, name: int, body: bytes, buffers: Sequence[Buffer], answers: Answers | None
    ) -> None:
        if runtime.casts.takes(self.region, self.procs, buffers) and self._cast(runtime, name, body, buffers, answers):
            return
        for place, rank in enumerate(self.ranks):
            proc = self.procs[rank]
            if answers is None:
                runtime.call(proc, self.actor, body, buffers, None, name=name)
            else:
                sent = answers.ask(place, rank, proc)
                sent.number = runtime.call(proc, self.actor, body, buffers, sent, name=name)

    def send_by(
        self,
        method: str,
        head: bytes,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        answers: Answers | None,
        end_s: float,
    ) -> list[int]:
        """Send a call that ends at *end_s* on the engine's clock; otherwise as `send`.

        Returns:
            The places of the actors whose mailboxes were full until then; nothing was sent to them.
        """
        runtime = current_runtime()
        body, buffers = pack_call(head, args, kwargs)
        name = self.name_of(method)
        if self.launch is not None:

            def send(copies: Sequence[Buffer]) -> None:
                held = self._send_by(runtime, name, body, copies, answers, end_s)
                if answers is not None and self.load is not None:
                    for place in held:
                        self.load.end(self.ranks[place])

            if self.defer(self._later(answers, send), body, buffers):
                return []
        return self._send_by(runtime, name, body, buffers, answers, end_s)

    def _send_by(
        self,
        runtime: Runtime,
        name: int,
        body: bytes,
        buffers: Sequence[Buffer],
        answers: Answers | None,
        end_s: float,
    ) -> list[int]:
        clock = runtime.engine.clock
        if runtime.casts.takes(self.region, self.procs, buffers) and (
            cast := self._cast(runtime, name, body, buffers, answers, end_s)
        ):
            return list(range(len(self.ranks))) if cast.held else []
        held = list(range(len(self.ranks)))
        waiting = {
            place: None if answers is None else answers.ask(place, rank, self.procs[rank])
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

    def _later(self, answers: Answers | None, send: Callable[[Sequence[Buffer]], None]) -> DeferredSend:
        """A call that waits for the launch: *send* sends it, unless it has timed out or was cancelled meanwhile."""

        def later(failure: SpawnError | None, buffers: Sequence[Buffer]) -> None:
            if failure is None and (answers is None or not answers.over):
                try:
                    send(buffers)
                except BaseException as error:
                    if answers is None:
                        raise
                    failure = SpawnError("its hosts", summary_of(error))
                    failure.__cause__ = error
            if failure is not None and answers is not None:
                self.note_seen()
                for place, rank in enumerate(self.ranks):
                    answers.take(place, rank, failure)

        return later

    def _cast(
        self,
        runtime: Runtime,
        name: int,
        body: bytes,
        buffers: Sequence[Buffer],
        answers: Answers | None,
        end_s: float | None = None,
    ) -> OpenCast | None:
        ranks, load = self.ranks, None if answers is None else self.load
        answer = None if answers is None else lambda place, given: answers.take(place, ranks[place], given)
        if load is not None:
            with runtime.engine.undisturbed():  # see `Credit.try_take`
                load.begin_all(ranks)
        sent, written = None, None if answers is None else CastRecord(context().mark, name)
        if written is None:
            runtime.recorder.sent(0, context().mark, name, 0, size_of(body, buffers), self.actor)
        delivery = Delivery(
            self._actor_text if answers is None else answers.where,
            answer,
            end_s,
            None if answers is None else answers.reduce,
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
        if answers is not None:
            answers.cast = sent
        return sent


class AskedRank:
    """The call to one of the actors, and the recipient of its answer.

    Attributes:
        number: number of the call for `Runtime.cancel`, once it was sent.
    """

    __slots__ = ("_answers", "_place", "_rank", "incarnation", "number")

    def __init__(self, answers: Answers, place: int, rank: int, incarnation: int) -> None:
        self._answers = answers
        self._place = place
        self._rank = rank
        self.incarnation = incarnation
        self.number = HELD

    @property
    def where(self) -> str:
        """The actor and the endpoint, in words."""
        return self._answers.where(self._place)

    def answer(self, given: Frame | MonarchError) -> None:
        """Pass the answer on to the gathered answers."""
        self._answers.take(self._place, self._rank, given)


class Answers:
    """The answers to one call of a `Callee`: a slot for each rank, and a deadline.

    Base class of `gather.Gather` and `stream.Queue`.
    """

    reduce: Reduce | None = None
    """How agents may combine answers; None if they may not."""

    def __init__(self, runtime: Runtime, callee: Callee, method: str, options: CallOptions) -> None:
        num = len(callee.ranks)
        self.runtime = runtime
        self.options = options
        self._callee = callee
        self._method = method
        self._answers: list[Frame | MonarchError | None] = [None] * num
        self._num_missing = num
        self._over = False
        self._limit_s: float | None = None
        self._asked: list[AskedRank] = []
        self.cast: OpenCast | None = None
        """The cast that carried the call; None if the call was sent to each proc directly."""
        # Answers arrive on the driver; failures to send are reported on the sending thread.
        self._lock = RLock()

    def send(self, head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call all actors and start the time limit.

        Raises:
            Exception: the call was not sent to all of them; no answer is awaited.
        """
        limit_s = self._limit_s = self.options.limit_s(self.runtime.engine.clock)
        try:
            if limit_s is None:
                self._callee.send(self._method, head, args, kwargs, self)
            else:
                end_s = self.runtime.engine.clock() + limit_s
                self.runtime.deadlines.add(limit_s, self)
                for place in self._callee.send_by(self._method, head, args, kwargs, self, end_s):
                    if self._callee.load is not None:
                        self._callee.load.end(self._callee.ranks[place])
        except BaseException:
            self.drop()
            raise

    @property
    def over(self) -> bool:
        """Whether further answers are ignored."""
        return self._over

    def drop(self) -> None:
        """Ignore further answers: there are enough, or the call could not be sent."""
        self._over = True
        if self._limit_s is not None:
            self.runtime.deadlines.remove(self._limit_s, self)

    def withdraw(self) -> None:
        """Cancel the calls that have no answer yet."""
        left = [asked.number for asked, answer in zip(self._asked, self._answers, strict=False) if answer is None]
        if self.cast is not None:
            self.runtime.casts.cancel(self.cast)
        self.runtime.cancel(self._callee.actor, [number for number in left if number != HELD])

    def give_up(self) -> None:
        """Called when a future of this call was cancelled, see `Future.cancel`."""
        raise NotImplementedError

    def ask(self, place: int, rank: int, proc: ProcRef) -> AskedRank:
        """Await the answer of the actor at *place* of the view, with base rank *rank*; it is about to be called."""
        if self._callee.load is not None:
            self._callee.load.begin(rank)
        asked = AskedRank(self, place, rank, proc.incarnation)
        self._asked.append(asked)
        return asked

    def take(self, place: int, rank: int, given: Frame | MonarchError) -> None:
        """Take the answer of the actor at *place* of the view, with base rank *rank*."""
        callee = self._callee
        if callee.load is not None:
            callee.load.end(rank, callee.procs[rank].incarnation if isinstance(given, ActorDied) else 0)
        with self._lock:
            if self._over:
                return
            self._answers[place] = given
            self._num_missing -= 1
            is_last = not self._num_missing
        self._take(place, given, is_last=is_last)

    def expire(self) -> None:
        """Called on the driver when the time limit has passed."""
        raise NotImplementedError

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        raise NotImplementedError

    def calls(self) -> tuple[int, int]:
        """The numbers of the first and the last call sent; 0 for both if none was."""
        if self.cast is not None:
            return self.cast.call, self.cast.call
        sent = [asked.number for asked in self._asked if asked.number != HELD]
        return (sent[0], sent[-1]) if sent else (0, 0)

    def missing(self) -> str:
        """The actors that have not answered, in words."""
        left = [index for index, answer in enumerate(self._answers) if answer is None]
        return self._callee.where_all(self._method, left) if left else f"{self._callee.name}.{self._method}"

    def _late(self, index: int, *others: int) -> CallTimeout:
        held = [place for place in (index, *others) if self._was_held(place)]
        return late(self.where(index), others, self._limit_s, held)

    def _was_held(self, place: int) -> bool:
        if self.cast is None and place < len(self._asked):
            return self._asked[place].number == HELD
        return self.cast is None or self.cast.held

    def where(self, place: int) -> str:
        """The actor at *place* and the endpoint, in words."""
        return self._callee.where(self._method, place)
