"""Puts aside messages of the program that kill one life after the other of procs with a restart policy."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from monarch_hpc.actor.casts.targets import CastMessage, Delivery, OpenCast
from monarch_hpc.actor.messages.payload import split_call, unpack_head
from monarch_hpc.actor.messages.pending import Pending
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import HELD, Runtime
from monarch_hpc.core.errors import PoisonMessage
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Region
from monarch_hpc.supervision.poison import PoisonWatch
from monarch_hpc.telemetry.layout import NUMBER
from monarch_hpc.wire.frames import Buffer, Kind

__all__ = ["Quarantine", "digest_of"]

_KEEP = 65536
"""Messages whose digests are kept, a hundred bytes each; one that has waited behind more is not recognised."""

_PART_BYTES = 1 << 20
"""Of a longer buffer, so much of its beginning and its end is compared, and its length: all of it would take longer
than to send it. Two messages that differ elsewhere only do not kill for different reasons."""


class Quarantine:
    """The messages of one program to procs with a restart policy; one object for each program. For any thread.

    Args:
        num_lives: config key `procs.poison_lives`.
    """

    current: ClassVar[Quarantine | None] = None
    """The object of this process; None if no mesh has a restart policy."""

    def __init__(self, runtime: Runtime, num_lives: int) -> None:
        self._runtime = runtime
        self._num_lives = num_lives
        self._watch = PoisonWatch(num_lives)
        self._windows: dict[int, float] = {}  # by mesh
        self._calls: Recent[tuple[int, int], bytes] = Recent(_KEEP)  # by incarnation and number
        self._casts: Recent[int, bytes] = Recent(_KEEP)
        self._call, self._cast = runtime.call, runtime.casts.cast
        # Only in programs with such a mesh: others do not pay for it at each message.
        runtime.call = self._on_call  # type: ignore[method-assign]
        runtime.casts.cast = self._on_cast  # type: ignore[method-assign]

    @classmethod
    def of(cls, runtime: Runtime, num_lives: int) -> Quarantine:
        """The object of the program with *runtime*."""
        if cls.current is None or cls.current._runtime is not runtime:
            cls.current = cls(runtime, num_lives)
        return cls.current

    @classmethod
    def end(cls) -> None:
        """Drop the object of a program that has ended."""
        cls.current = None

    def forgive(self, mesh: int) -> None:
        """Send all messages to a mesh again: its program heals it."""
        self._watch.forget(mesh)

    def watch(self, mesh: int, window_s: float) -> None:
        """Begin to watch the messages to a mesh; *window_s* is that of its policy."""
        self._windows[mesh] = window_s

    def on_death(self, proc: ProcRef, running: Iterable[tuple[int, int]]) -> None:
        """Handle the death of a proc that was handling the calls *running*: caller and number of each."""
        window_s = self._windows.get(proc.mesh)
        if window_s is None:
            return
        calls, own = list(running), self._runtime.own.incarnation
        message = None
        if len(calls) == 1 and calls[0][0] == own:
            number = calls[0][1] & NUMBER
            message = self._calls.get((proc.incarnation, number)) or self._casts.get(number)
        self._watch.on_death(self._runtime.engine.clock(), (proc.mesh, proc.rank), message, window_s)

    def _on_call(
        self,
        proc: ProcRef,
        actor: int,
        body: bytes,
        buffers: Sequence[Buffer],
        pending: Pending | None,
        until_s: float | None = None,
        end_s: float | None = None,
        name: int = 0,
    ) -> int:
        if pending is None or proc.mesh not in self._windows:
            return self._call(proc, actor, body, buffers, pending, until_s, end_s, name)
        digest = digest_of(actor, body, buffers)
        if self._watch.is_aside(proc.mesh, digest):
            pending.answer(PoisonMessage(pending.where, self._num_lives))
            return 0
        number = self._call(proc, actor, body, buffers, pending, until_s, end_s, name)
        if number != HELD:
            self._calls[proc.incarnation, number & NUMBER] = digest
        return number

    def _on_cast(
        self, region: Region, procs: Mapping[int, ProcRef], message: CastMessage, delivery: Delivery
    ) -> OpenCast | None:
        mesh = procs[region.base_rank(0)].mesh
        if message.kind is not Kind.CALL or mesh not in self._windows:
            return self._cast(region, procs, message, delivery)
        digest = digest_of(message.actor, message.body, message.buffers)
        if self._watch.is_aside(mesh, digest):
            return None  # one call for each rank, which are answered above
        cast = self._cast(region, procs, message, delivery)
        if cast is not None:
            self._casts[cast.call & NUMBER] = digest
        return cast


def digest_of(actor: int, body: bytes, buffers: Sequence[Buffer]) -> bytes:
    """A digest of a call to an actor; calls of the same endpoint with equal arguments have equal ones, of any view."""
    import hashlib  # late: with OpenSSL it takes long, and few programs quarantine calls

    head, args = split_call(body)
    digest = hashlib.blake2b(actor.to_bytes(8, "little"), digest_size=16)
    for part in (_method_of(head), args, *buffers):
        view = memoryview(part).cast("B")
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view if len(view) <= 2 * _PART_BYTES else view[:_PART_BYTES])
        if len(view) > 2 * _PART_BYTES:
            digest.update(view[-_PART_BYTES:])
    return digest.digest()


@functools.lru_cache(1024)
def _method_of(head: bytes) -> bytes:
    return unpack_head(head)[0].encode()
