"""The program's side of kept answers: acknowledges to each proc the answers that the program has read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import local
from typing import ClassVar, cast

from monarch_hpc.actor.kept.keeper import KEEPER, pack_read, pack_request
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.pending import Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError, TransportError
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Takes"]

_UNREAD = 1 << 16
"""Answers whose procs are remembered until they are read; a program that leaves more of them unread has no use for
them, and their procs drop them in time."""

_FLUSH_S = 1.0
"""Longest wait for a full socket to take the message that an answer was read."""

_RESULT, _FAILURE = Kind.RESULT, Kind.FAILURE


@dataclass(frozen=True, slots=True)
class _Kept:
    channel: FrameChannel
    caller: int
    slot: int


class Takes:
    """The unread answers of procs that keep answers; one object for each program. For any thread.

    An answer is in hand from just before a thread gets it: the message of that is the kernel's by then, which
    delivers it though the program is killed the moment after. When the thread reads another one, it is read.
    """

    current: ClassVar[Takes | None] = None
    """The object of this process; None if no proc keeps answers for it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._own = runtime.own.incarnation
        self._keepers: set[int] = set()
        self._unread: Recent[int, _Kept] = Recent(_UNREAD)
        self._threads = local()
        self._deliver = runtime.on_frame
        # Only in programs whose procs keep answers: others do not pay for it at each frame.
        runtime.on_frame = self._on_frame  # type: ignore[method-assign]

    @classmethod
    def of(cls, runtime: Runtime) -> Takes:
        """The object of the program with *runtime*."""
        if cls.current is None or cls.current._runtime is not runtime:
            cls.current = cls(runtime)
        return cls.current

    @classmethod
    def forget(cls) -> None:
        """Drop the object of a program that has ended; call numbers start over in the next program."""
        cls.current = None

    def prepare(self, channel: FrameChannel, max_bytes: int, about: bytes) -> None:
        """Have a proc keep its answers; before the first other message to it."""
        self._keepers.add(channel.peer.incarnation)
        self._tell(channel, pack_request("prepare", max_bytes, about))

    def supervise(self, channel: MessageLink) -> None:
        """Have a proc report the failures of its actors here, which were another program's, also the earlier ones."""
        self._tell(channel, pack_request("supervise"))

    def list(self, proc: ProcRef, done: Callable[[Frame | MonarchError], None]) -> None:
        """Ask a proc for its actors, and for the calls of other programs."""

        def answered(given: Frame | MonarchError) -> None:
            if isinstance(given, Frame):
                self._unread.pop(given.dest)
            done(given)

        slot = Slot(proc.incarnation, f"proc {proc.rank} on {proc.host}", answered)
        self._runtime.call(proc, KEEPER, pack_request("list"), (), slot)

    def fetch(self, proc: ProcRef, caller: int, slot: int, done: Callable[[Frame | MonarchError], None]) -> None:
        """Ask a proc for its answer to the call *slot* of another program; it comes when there is one."""

        def answered(given: Frame | MonarchError) -> None:
            known = self._unread.pop(given.dest) if isinstance(given, Frame) else None
            if isinstance(given, Frame) and known is not None:
                self._unread[given.dest] = _Kept(known.channel, caller, slot)
            done(given)

        pending = Slot(proc.incarnation, f"an answer that proc {proc.rank} on {proc.host} has kept", answered)
        self._runtime.call(proc, KEEPER, pack_request("get", caller, slot), (), pending)

    def read(self, answer: Frame, *, again: bool = False) -> None:
        """Note that this thread gets an answer.

        Args:
            again: whether it gets it together with the last one, as those of several ranks to one call.
        """
        kept = self._unread.pop(answer.dest)
        if kept is None:
            return
        in_hand: list[_Kept] = self._threads.__dict__.setdefault("in_hand", [])
        if not again:
            for one in in_hand:
                self._tell(one.channel, pack_read(one.caller, one.slot, done=True))
            in_hand.clear()
        self._tell(kept.channel, pack_read(kept.caller, kept.slot, done=False))
        in_hand.append(kept)
        # Another thread may be writing: the message must be the kernel's before the answer is the program's.
        channel, engine = kept.channel, self._runtime.engine
        if channel.queued_bytes and not engine.driving:
            engine.wait(lambda: not channel.queued_bytes or channel.error is not None, _FLUSH_S)

    def _on_frame(self, channel: MessageLink, frame: Frame) -> None:
        if (frame.kind is _RESULT or frame.kind is _FAILURE) and frame.dest:
            peer = channel.peer
            if getattr(peer, "incarnation", 0) in self._keepers:
                self._unread[frame.dest] = _Kept(cast(FrameChannel, channel), self._own, frame.dest)
        self._deliver(channel, frame)

    def _tell(self, channel: MessageLink, body: bytes) -> None:
        with contextlib.suppress(TransportError):  # its procs are gone, and their answers with them
            channel.send(Frame(Kind.CALL, KEEPER, 0, body))
