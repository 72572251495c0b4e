"""The options of a call, and the reading of its answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from monarch_hpc.actor.cell.response_port import AnswerTo
from monarch_hpc.actor.context import deadline, deadlines_seen
from monarch_hpc.actor.kept.takes import Takes
from monarch_hpc.actor.messages.sent_failures import unloadable, unpack_failure
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import CallTimeout, MonarchError
from monarch_hpc.mesh.calls.landing import Landing
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["CallOptions", "is_result", "late", "read_answer"]

_STEP_S = 0.01
"""Step to which inherited time limits are rounded up; too short to matter for a deadline."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of a call, see `Endpoint.options`.

    Attributes:
        timeout_s: seconds until a call ends, answered or not; None waits for every rank.
        collects: whether the exception of a failed rank is a result, and does not fail the call.
        answer_to: the port that takes the place of a response port; None for the call itself.
        landing: where results are written; None where they are new objects.
    """

    timeout_s: float | None = None
    collects: bool = False
    answer_to: AnswerTo | None = None
    landing: Landing | None = None

    def arguments(self, args: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments to send for the caller's *args*."""
        return args if self.answer_to is None else (self.answer_to, *args)

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


def read_answer(answer: Frame | MonarchError, *, again: bool = False) -> tuple[Any, BaseException | None]:
    """The value of *answer* and None, or None and its exception; unpickling runs user code.

    Args:
        again: whether it is read together with the last one that was read.
    """
    if not isinstance(answer, Frame):
        return None, answer
    try:
        if answer.kind is not Kind.RESULT:
            return None, unpack_failure(answer)
        try:
            return loads(answer.body, answer.buffers), None
        except BaseException as error:  # noqa: BLE001 unpickling runs user code
            return None, unloadable(error)
    finally:
        if Takes.current is not None:
            Takes.current.read(answer, again=again)


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
