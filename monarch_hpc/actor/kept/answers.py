"""Calls of programs that a proc has not answered yet, or whose answers have not been read; pure."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.frames import Frame, copy_of, size_of

__all__ = ["KeptAnswers", "KeptCall", "Reader"]

_OVERHEAD_BYTES = 1024
"""Size of a kept answer beside its value."""

Reader = Callable[[Frame], None]
"""Called with an answer; on any thread."""


@dataclass(slots=True, eq=False)
class KeptCall:
    """One call of a program.

    Attributes:
        caller: incarnation of the program.
        slot: the caller's number of the call.
        actor: number of the actor.
        head: head of the message, which names the endpoint; see `actor.messages.payload.unpack_head`.
        answer: a copy of the answer; None before there is one.
        reader: takes the answer as soon as there is one; None if there is no waiting reader.
        in_hand: whether the caller was about to get the answer, and has not asked for another one since.
    """

    caller: int
    slot: int
    actor: int
    head: bytes
    answer: Frame | None = None
    reader: Reader | None = None
    in_hand: bool = False

    @property
    def num_bytes(self) -> int:
        """The memory that the answer takes."""
        return 0 if self.answer is None else size_of(self.answer.body, self.answer.buffers) + _OVERHEAD_BYTES


class KeptAnswers:
    """Calls by caller and number. For any thread.

    Args:
        max_bytes: limit on all answers; beyond it the oldest ones are dropped.

    Attributes:
        num_dropped: how many answers were dropped, and have not been read by their callers.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_dropped = 0
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._calls: dict[tuple[int, int], KeptCall] = {}
        self._answered: dict[tuple[int, int], KeptCall] = {}  # those with an answer, the oldest answer first
        self._lock = RLock()

    def begin(self, call: KeptCall) -> None:
        """Add a call that has arrived."""
        with self._lock:
            self._calls[call.caller, call.slot] = call

    def answer(self, caller: int, slot: int, frame: Frame) -> None:
        """Keep a copy of the answer to a call; a second answer to the same call replaces the first."""
        key = caller, slot
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                return
            self._drop(key)
            call.answer = Frame(frame.kind, slot, 0, bytes(frame.body), [copy_of(buffer) for buffer in frame.buffers])
            self._calls[key] = self._answered[key] = call
            self._num_bytes += call.num_bytes
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._answered)))
                self.num_dropped += 1
            kept, reader = call.answer, call.reader
            call.reader = None
        if reader is not None:
            reader(kept)

    def hand(self, caller: int, slot: int) -> None:
        """Note that the caller is about to get the answer."""
        with self._lock:
            call = self._calls.get((caller, slot))
            if call is not None:
                call.in_hand = True

    def take(self, caller: int, slot: int) -> None:
        """Forget a call: its caller has read the answer."""
        with self._lock:
            if (caller, slot) in self._calls:
                self._drop((caller, slot))
            else:
                self.num_dropped -= 1  # the answer was read after it was dropped here

    def read(self, caller: int, slot: int, reader: Reader) -> bool:
        """Call *reader* with the answer to a call, now or as soon as there is one; False if it was dropped."""
        with self._lock:
            call = self._calls.get((caller, slot))
            if call is None:
                return False
            answer = call.answer
            if answer is None:
                call.reader = reader
        if answer is not None:
            reader(answer)
        return True

    def of_others(self, caller: int) -> list[KeptCall]:
        """The calls of all other callers than *caller*, in the order in which they arrived or were answered."""
        with self._lock:
            return [call for call in self._calls.values() if call.caller != caller]

    def _drop(self, key: tuple[int, int]) -> None:
        call = self._calls.pop(key)
        if self._answered.pop(key, None) is not None:
            self._num_bytes -= call.num_bytes
