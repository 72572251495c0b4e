"""The owner's side of memory that others open: it gives them keys, notes who has one, and takes them back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Protocol

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.cma.cross_memory import CrossMemory
from monarch_hpc.transport.memory.cma.stamps import Stamps
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.registry import Memories
from monarch_hpc.transport.memory.requests import (
    Change,
    MemoryStep,
    OpenedMemory,
    make_request,
    parse_owner,
    parse_request,
)
from monarch_hpc.wire.frames import Frame

__all__ = ["Grants", "Holder"]

_KEEP = 4096
"""Number of revoked memories whose reason is kept for those who still ask for them."""


class Holder(Protocol):
    """A process that uses a memory: one at the other end of a channel, or this one."""

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send it a frame; see `transport.api.FrameChannel.send`."""
        ...


@dataclass(slots=True)
class _Revocation:
    """A revoked memory: it cannot be opened any more, but some processes may still have transfers in progress.

    Attributes:
        holders: those who have not released it yet.
        done: called once no process uses the memory.
    """

    holders: set[Holder]
    done: list[Callable[[], object]]


class Grants:
    """The memories of a process that others have opened; `revoke` is for any thread, the rest for the driver.

    Attributes:
        path_of: what carries transfers between this process and the owner of a memory, by the owner's incarnation.
    """

    def __init__(self, engine: Engine, memories: Memories, cross_memory: CrossMemory) -> None:
        self._engine = engine
        self._cross_memory = cross_memory
        self._stamps: Stamps[FrameChannel] = Stamps()
        self._memories = memories
        self._holders: dict[bytes, set[Holder]] = {}
        self._revocations: dict[bytes, _Revocation] = {}
        self._revoked: Recent[bytes, str] = Recent(_KEEP)
        self.path_of: Callable[[int, bytes], str] = lambda _owner, _identifier: ""

    def on_request(self, channel: FrameChannel, frame: Frame) -> None:
        """Handle a request of a process that uses memory of this one, or its answer to one of ours.

        One that cannot be parsed is refused: the channel serves others of that process, too.
        """
        try:
            self._on_request(channel, *parse_request(frame), frame.reply)
        except FrameError as error:
            _send(channel, make_request(MemoryStep.REFUSED, frame.reply, bytes(ID_BYTES), str(error).encode()))

    def _on_request(self, channel: FrameChannel, step: MemoryStep, identifier: bytes, rest: bytes, number: int) -> None:
        if step is MemoryStep.OPEN:
            opened = self._open(identifier, channel, rest)
            answer = (MemoryStep.OPENED, opened) if opened else (MemoryStep.REFUSED, self.problem(identifier).encode())
            _send(channel, make_request(answer[0], number, identifier, answer[1]))
        elif step is MemoryStep.DROP:
            answered = partial(_send, channel, make_request(MemoryStep.DROPPED, number, identifier))
            if not self.revoke(identifier, rest.decode(errors="replace"), answered):
                why = self.problem(identifier).encode()
                _send(channel, make_request(MemoryStep.REFUSED, number, identifier, why))
        elif step is MemoryStep.CHANGE:
            before, problem = self.change(identifier, Change.parse(rest))
            answer = (MemoryStep.REFUSED, problem.encode()) if problem else (MemoryStep.CHANGED, before)
            _send(channel, make_request(answer[0], number, identifier, answer[1]))
        elif step is MemoryStep.ASK_PATH:
            path = self.path_of(parse_owner(rest), identifier)
            _send(channel, make_request(MemoryStep.PATH, number, identifier, path.encode()))
        elif step is MemoryStep.RELEASED:
            self.on_release(identifier, channel)
        else:
            raise FrameError(f"a memory request with step {step.name} to the memory's owner")

    def _open(self, identifier: bytes, channel: FrameChannel, place: bytes) -> bytes:
        memory = self.hold(identifier, channel)
        if memory is None:
            return b""
        opened = OpenedMemory(memory.key)
        if place and place == self._cross_memory.place and memory.nbytes and not memory.parts.on_device:
            with contextlib.suppress(OSError):  # then it reads and writes as processes of other hosts do
                opened = OpenedMemory(memory.key, os.getpid(), self._stamps.of(channel), memory.address)
        return opened.pack()

    def find(self, identifier: bytes) -> Memory | None:
        """The memory with *identifier*; None if it was revoked, or never registered."""
        return None if identifier in self._revoked else self._memories.find(identifier)

    def hold(self, identifier: bytes, holder: Holder) -> Memory | None:
        """Note that *holder* uses a memory: it is asked to release it before the memory is closed. As `find`."""
        memory = self.find(identifier)
        if memory is not None:
            self._holders.setdefault(identifier, set()).add(holder)
        return memory

    def problem(self, identifier: bytes) -> str:
        """Why a memory cannot be used."""
        return self._revoked.get(identifier) or "it has no such memory, or has closed it"

    def change(self, identifier: bytes, change: Change) -> tuple[bytes, str]:
        """Change a number in a memory of this process; return what it was, or why it cannot be changed."""
        if identifier in self._revoked:
            return b"", self.problem(identifier)
        return self._memories.change(identifier, change)

    def revoke(self, identifier: bytes, why: str, done: Callable[[], object]) -> bool:
        """Revoke a memory for all processes, and close it.

        Args:
            why: the reason for those who try to use it later.
            done: called on the driver once no transfer is in progress, and the memory is closed.

        Returns:
            False if it had been revoked before, or never registered; then *done* is not called. Everyone who has
            opened the memory reads of the end before what this process sends later.
        """
        if not self._engine.driving:
            began: list[bool] = []
            self._engine.call_soon(lambda: began.append(self.revoke(identifier, why, done)))
            self._engine.wait(lambda: bool(began), None)
            return began == [True]
        revocation = self._revocations.get(identifier)
        if revocation is not None:
            revocation.done.append(done)
            return True
        if identifier in self._revoked or self._memories.find(identifier) is None:
            return False
        self._revoked[identifier] = why
        holders = self._holders.pop(identifier, set())
        self._revocations[identifier] = _Revocation(holders, [done])
        for holder in list(holders):
            if not _send(holder, make_request(MemoryStep.REVOKE, 0, identifier, why.encode())):
                holders.discard(holder)
        self._close_unused(identifier)
        return True

    def on_release(self, identifier: bytes, holder: Holder) -> None:
        """Take note that *holder* uses a memory no more, whose revocation it was told of."""
        revocation = self._revocations.get(identifier)
        if revocation is not None:
            revocation.holders.discard(holder)
            self._close_unused(identifier)

    def _close_unused(self, identifier: bytes) -> None:
        revocation = self._revocations[identifier]
        if revocation.holders:
            return
        del self._revocations[identifier]
        memory = self._memories.find(identifier)
        if memory is not None:
            memory.close()
        for done in revocation.done:
            done()

    def on_lost(self, channel: FrameChannel) -> None:
        """Forget a process that has ended, or cannot be reached: it uses no memory of this one any more."""
        self._stamps.wipe(channel)  # before any memory is closed
        for holders in self._holders.values():
            holders.discard(channel)
        for identifier in list(self._revocations):
            self.on_release(identifier, channel)


def _send(holder: Holder, frame: Frame) -> bool:
    with contextlib.suppress(TransportError):  # that process is gone: `on_lost` follows
        holder.send(frame)
        return True
    return False
