"""Gathers the answers to one call of an actor mesh until all have arrived, or the call has failed or timed out."""

from __future__ import annotations

import _thread
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monarch_hpc.actor.casts.targets import OpenCast, Reduce
from monarch_hpc.actor.context import deadline, deadlines_seen
from monarch_hpc.actor.messages.payload import unloadable, unpack_failure
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import HELD, Runtime
from monarch_hpc.core.errors import ActorDied, CallTimeout, MeshDied, MeshError, MonarchError, SupervisionError
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["Answers", "CallOptions", "Gather", "is_result", "late", "read_answer"]

_SETTLE_S = 0.25
"""Wait for failures of other ranks after the first failure of a call.

Long enough to report a bug that strikes every rank as one `MeshError`; short, because ranks that wait for the failed
one never answer.
"""


_STEP_S = 0.01
"""Step to which inherited time limits are rounded up; too short to matter for a deadline."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of a call, see `Endpoint.options`.

    Attributes:
        timeout_s: seconds until a call ends, answered or not; None waits for every rank.
        collects: whether the exception of a failed rank is a result, and does not fail the call.
    """

    timeout_s: float | None = None
    collects: bool = False

    def limit_s(self, clock: Callable[[], float]) -> float | None:
        """Seconds to wait for the answers to a call that starts now; None for no limit.

        A call made by an endpoint inherits the time left to the endpoint's caller. That time is rounded up in steps,
        so that many calls share a limit: see `actor.runtime.deadlines`.
        """
        ends_s = deadline() if deadlines_seen() else None
        if ends_s is None:
            return self.timeout_s
        left_s = math.ceil(max(ends_s - clock(), 0.0) / _STEP_S) * _STEP_S
        return left_s if self.timeout_s is None else min(left_s, self.timeout_s)


class AskedRank:
    """The call to one of the actors, and the recipient of its answer."""

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
    """Base class of `Gather` and `stream.Queue`: a slot for the answer of each rank, and a deadline."""

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
        self._lock = _thread.allocate_lock()

    def send(self, head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call all actors and start the time limit.

        Raises:
            Exception: the call was not sent to all of them; no answer is awaited.
        """
        limit_s = self._limit_s = self.options.limit_s(self.runtime.engine.clock)
        try:
            if limit_s is None:
                self._callee.send(self._method, head, args, kwargs, self._ask, self)
            else:
                end_s = self.runtime.engine.clock() + limit_s
                self.runtime.deadlines.add(limit_s, self)
                for place in self._callee.send_by(self._method, head, args, kwargs, self._ask, end_s, self):
                    if self._callee.load is not None:
                        self._callee.load.end(self._callee.ranks[place])
        except BaseException:
            self.drop()
            raise

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

    def _ask(self, place: int, rank: int, proc: ProcRef) -> AskedRank:
        if self._callee.load is not None:
            self._callee.load.begin(rank)
        asked = AskedRank(self, place, rank, proc.incarnation)
        self._asked.append(asked)
        return asked

    def take(self, place: int, rank: int, given: Frame | MonarchError) -> None:
        """Take the answer of one actor."""
        if self._callee.load is not None:
            self._callee.load.end(rank, died=isinstance(given, ActorDied))
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
        if not left:
            return f"{self._callee.name}.{self._method}"
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"{self.where(left[0])}{others}"

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


class Gather(Answers):
    """All answers to one call; values are unpickled by the thread that reads them."""

    def __init__(self, runtime: Runtime, callee: Callee, method: str, options: CallOptions) -> None:
        super().__init__(runtime, callee, method, options)
        self.completed: Callable[[], None] = _nothing
        """Called once, on the driver, when the call has ended; must be set before the call is sent."""
        self._failing = False

    @property
    def fails(self) -> bool:
        """Whether `collect` will raise; valid once the call has ended."""
        return not self.options.collects and (self._failing or self._num_missing > 0)

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        first = not self._failing and not is_result(given)
        if first:
            self._failing = True
        if is_last:
            self._end()
        elif first and not self.options.collects:
            self.runtime.engine.call_later(_SETTLE_S, self._end)

    def _end(self) -> None:
        if not self._over:
            self.drop()
            self.completed()

    def expire(self) -> None:
        self._end()
        self.withdraw()

    def give_up(self) -> None:
        self.drop()
        self.withdraw()

    def collect(self) -> tuple[list[Any], dict[int, BaseException]]:
        """The results in the order of ranks, and the exceptions of failed ranks by place.

        With ``on_error="collect"``, the exceptions are among the results too.

        Raises:
            Exception: the exceptions of the ranks, unless the call collects them.
        """
        values: list[object] = []
        failures: dict[int, BaseException] = {}
        missing: list[int] = []
        for index, answer in enumerate(self._answers):
            value: object = None
            if answer is None:
                missing.append(index)
            else:
                value, failure = read_answer(answer)
                if failure is not None:
                    value = failures[index] = failure
            values.append(value)
        if self.options.collects:
            for index in missing:
                values[index] = failures[index] = self._late(index)
            return values, failures
        if len(failures) > 1:
            gone = all(issubclass(type(failure), SupervisionError) for failure in failures.values())
            raise (MeshDied if gone else MeshError)(f"{self._callee.name}.{self._method}", failures)
        for failure in failures.values():
            raise failure
        if missing:
            raise self._late(*missing)
        return values, failures


def read_answer(answer: Frame | MonarchError) -> tuple[Any, BaseException | None]:
    """The value of *answer* and None, or None and its exception; unpickling runs user code."""
    if not isinstance(answer, Frame):
        return None, answer
    if answer.kind is not Kind.RESULT:
        return None, unpack_failure(answer)
    try:
        return loads(answer.body, answer.buffers), None
    except BaseException as error:  # noqa: BLE001 unpickling runs user code
        return None, unloadable(error)


def late(where: str, others: Sequence[int], limit_s: float | None, held: Sequence[int]) -> CallTimeout:
    """The error of a call that timed out.

    Args:
        where: the first actor that has not answered, in words.
        others: places of the other actors that have not.
        limit_s: the time limit.
        held: places whose mailboxes stayed full, so that nothing was sent there.
    """
    error = CallTimeout(where, others, limit_s or 0.0)
    if held:
        error.add_note(f"not sent to ranks {', '.join(map(str, held))}: their mailboxes were full all the time")
    return error


def is_result(given: Frame | MonarchError) -> bool:
    """Whether the answer is a result, not a failure."""
    return isinstance(given, Frame) and given.kind is Kind.RESULT


def _nothing() -> None:
    """Default of `Gather.completed`."""
