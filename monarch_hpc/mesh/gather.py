"""The answers to one call of an actor mesh, until they are all there, or there is no point in waiting for more."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monarch_hpc.actor.payload import unpack_failure
from monarch_hpc.actor.reference import ProcRef
from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.core.errors import ActorDied, CallTimeout, MeshError, MonarchError
from monarch_hpc.mesh.callee import Callee
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["Answers", "CallOptions", "Gather", "is_result", "read_answer"]

_SETTLE_S = 0.25
"""After the first failure of a call, how long to wait for those of other ranks.

Long enough that a bug which strikes every rank is reported as one `MeshError`; short, because ranks
that now wait for the failed one would never answer.
"""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How to wait for the answers to a call.

    Attributes:
        timeout_s: seconds until a call is over, answered or not; None waits for every rank.
        collects: whether a failed rank is one of the results, and does not fail the call.
    """

    timeout_s: float | None = None
    collects: bool = False


class Asked:
    """One actor of those that were called."""

    __slots__ = ("_answers", "_place", "_rank", "incarnation")

    def __init__(self, answers: Answers, place: int, rank: int, incarnation: int) -> None:
        self._answers = answers
        self._place = place
        self._rank = rank
        self.incarnation = incarnation

    @property
    def where(self) -> str:
        """The actor and the endpoint, in words."""
        return self._answers.where(self._place)

    def answer(self, given: Frame | MonarchError) -> None:
        """Hand on the answer."""
        self._answers.take(self._place, self._rank, given)


class Answers:
    """What both ways to wait for many answers have in common: a place for each rank, and a deadline."""

    def __init__(self, runtime: Runtime, callee: Callee, method: str, options: CallOptions) -> None:
        num = len(callee.ranks)
        self.runtime = runtime
        self.options = options
        self._callee = callee
        self._method = method
        self._answers: list[Frame | MonarchError | None] = [None] * num
        self._num_missing = num
        self._over = False
        # Answers come on the driver, and what cannot be sent is answered on the thread that sends.
        self._lock = _thread.allocate_lock()

    def send(self, head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call all; the time runs.

        Raises:
            Exception: it was not sent to all of them, and nothing is waited for.
        """
        if self.options.timeout_s is not None:
            self.runtime.deadlines.add(self.options.timeout_s, self)
        try:
            self._callee.send(head, args, kwargs, self._ask)
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Wait for nothing more: there is enough, or the call could not be sent."""
        self._over = True
        if self.options.timeout_s is not None:
            self.runtime.deadlines.remove(self.options.timeout_s, self)

    def _ask(self, place: int, rank: int, proc: ProcRef) -> Asked:
        if self._callee.load is not None:
            self._callee.load.begin(rank)
        return Asked(self, place, rank, proc.incarnation)

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
        """The time is over; on the driver."""
        raise NotImplementedError

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        raise NotImplementedError

    def missing(self) -> str:
        """Who has not answered, in words."""
        left = [index for index, answer in enumerate(self._answers) if answer is None]
        if not left:
            return f"{self._callee.name}.{self._method}"
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"{self.where(left[0])}{others}"

    def where(self, place: int) -> str:
        """The actor at *place* and the endpoint, in words."""
        return self._callee.where(self._method, place)


class Gather(Answers):
    """All answers to one call; values are rebuilt by whoever reads them."""

    def __init__(self, runtime: Runtime, callee: Callee, method: str, options: CallOptions) -> None:
        super().__init__(runtime, callee, method, options)
        self.completed: Callable[[], None] = _nothing
        """Called once, on the driver, when the call is over; to be set before it is sent."""
        self._failing = False

    @property
    def fails(self) -> bool:
        """Whether `collect` will raise, of a call that is over."""
        return not self.options.collects and (self._failing or self._num_missing > 0)

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        first = not self._failing and not is_result(given)
        if first:
            self._failing = True
        if is_last:
            self.expire()
        elif first and not self.options.collects:
            self.runtime.engine.call_later(_SETTLE_S, self.expire)

    def expire(self) -> None:
        if not self._over:
            self.drop()
            self.completed()

    def collect(self) -> tuple[list[Any], dict[int, BaseException]]:
        """The results in the order of the ranks, and the exceptions of those that failed.

        Where the call collects failures these are results too.

        Raises:
            Exception: what the ranks raised, unless the call collects.
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
            raise MeshError(f"{self._callee.name}.{self._method}", failures)
        for failure in failures.values():
            raise failure
        if missing:
            raise self._late(*missing)
        return values, failures

    def _late(self, index: int, *others: int) -> CallTimeout:
        return CallTimeout(self.where(index), others, self.options.timeout_s or 0.0)


def read_answer(answer: Frame | MonarchError) -> tuple[Any, BaseException | None]:
    """The value of *answer*, or why there is none; runs the user's code that rebuilds values."""
    if not isinstance(answer, Frame):
        return None, answer
    if answer.kind is not Kind.RESULT:
        return None, unpack_failure(answer)
    try:
        return loads(answer.body, answer.buffers), None
    except Exception as error:  # noqa: BLE001 unpickling runs user code
        return None, error


def is_result(given: Frame | MonarchError) -> bool:
    """Whether the endpoint returned."""
    return isinstance(given, Frame) and given.kind is Kind.RESULT


def _nothing() -> None:
    """For a call whose caller does not wait yet."""
