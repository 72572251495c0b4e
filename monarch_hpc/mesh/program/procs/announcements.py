"""Announces procs that have replaced others to all procs, and learns when these send their calls there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_hpc.actor.messages.proc_ref import ProcRef, replaced
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.procs import ReplacementTaken
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Announcements"]

_TAKE_S = 5.0
"""Time in which procs take an announcement, which their I/O does beside all code of users. One that takes longer is
stopped by a signal, and is not waited for."""

_RECHECK_S = 0.1
"""Time between looks at procs that have not taken it: they may have died."""


@dataclass(slots=True, eq=False)
class _Open:
    left: set[int]
    until_s: float
    done: Callable[[], None]


class Announcements:
    """The announcements of a program. For the driver."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[tuple[int, int, int], _Open] = {}

    def announce(self, proc: ProcRef, actors: Sequence[int], done: Callable[[], None]) -> None:
        """Announce *proc* as the current one of its rank to all procs; call *done* when all have acknowledged it.

        Args:
            actors: numbers of the actors that have been made again in it.
        """
        told = {channel.peer.incarnation for channel in self._channels() if self._tell(channel, proc, actors)}
        if not told:
            done()
            return
        key = proc.mesh, proc.rank, proc.restarts
        self._open[key] = _Open(told, self._runtime.engine.clock() + _TAKE_S, done)
        self._recheck(key)

    def catch_up(self, channel: FrameChannel) -> None:
        """Tell a proc that has just been reached, before anything else: references that it gets may be older."""
        for proc, numbers in self._runtime.incarnations.replacements():
            self._tell(channel, proc, [number for number in numbers if number != proc.mesh])

    def on_taken(self, incarnation: int, taken: ReplacementTaken) -> None:
        """Handle the answer of a proc."""
        key = taken.mesh, taken.rank, taken.restarts
        opened = self._open.get(key)
        if opened is not None:
            opened.left.discard(incarnation)
            self._settle(key, opened)

    def _settle(self, key: tuple[int, int, int], opened: _Open) -> None:
        if not opened.left and self._open.pop(key, None) is not None:
            opened.done()

    def _recheck(self, key: tuple[int, int, int]) -> None:
        opened = self._open.get(key)
        if opened is None:
            return
        late = self._runtime.engine.clock() >= opened.until_s
        opened.left &= set() if late else {channel.peer.incarnation for channel in self._channels()}
        self._settle(key, opened)
        if opened.left:
            self._runtime.engine.call_later(_RECHECK_S, lambda: self._recheck(key))

    def _channels(self) -> list[FrameChannel]:
        channels = list(self._runtime.node.channels.values())
        return [channel for channel in channels if channel.peer.role is Role.PROC and channel.error is None]

    def _tell(self, channel: FrameChannel, proc: ProcRef, actors: Sequence[int]) -> bool:
        try:
            channel.send(Frame(Kind.CONTROL, body=encode(replaced(proc, actors))))
        except TransportError:  # it is gone
            return False
        self._runtime.casts.sent(channel.peer.incarnation)  # no later cast may overtake it
        return True
