"""Combines the results of a call into one value: at the caller, and in procs on the way to the caller.

A proc runs each order on a separate thread: user code must not run on the thread that drives the I/O, and a reduction
that waits for another one must not block it.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from monarch_hpc.actor.casts.targets import OpenCast
from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import pack_result
from monarch_hpc.actor.messages.sent_failures import send_failure
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.wire.casts import Note, NoteKind, pack_notes
from monarch_hpc.wire.frames import Frame, Kind, copy_of
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.reductions import Order, content_of, pack_span, parse_order, span_of
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["Folding", "combine", "take_part"]

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Folding(Generic[A, R]):
    """The functions that combine many values into one.

    Attributes:
        identity: initial value; neutral for *merge*.
        combine: takes the value so far and one result.
        merge: takes the values of two adjacent ranges of ranks, in order.
    """

    identity: A
    combine: Callable[[A, R], A]
    merge: Callable[[A, A], A]

    def fold(self, parts: Iterable[tuple[bool, Any]]) -> A:
        """Combine *parts*, given in rank order as pairs: whether the part is itself combined, and its value."""
        value = self.identity
        for merged, part in parts:
            value = self.merge(value, part) if merged else self.combine(value, part)
        return value

    def pack(self) -> bytes:
        """Serialize the functions for the procs that combine.

        Raises:
            TypeError: one of them cannot be pickled; the text names it.
        """
        try:
            body, buffers = dumps((self.identity, self.combine, self.merge))
            return pickle.dumps((body, tuple(copy_of(buffer) for buffer in buffers)), 5)
        except Exception as error:  # pickling runs user code
            parts = {"identity": self.identity, "combine": self.combine, "merge": self.merge}
            raise refusal(parts, error) from error


def take_part(cast: OpenCast, note: Note) -> None:
    """Take the combined answer of several places, or the note that their answers were dropped.

    Raises:
        FrameError: the cast has no such places, or is not a reduction.
    """
    start, end = span_of(note)
    if cast.reduce is None or end > len(cast.target.region):
        raise FrameError(f"a part of a reduction for the places from {start} up to {end}")
    fresh = cast.left.intersection(range(start, end))
    cast.left -= fresh
    cast.elsewhere -= fresh
    if fresh:
        whole = note.tag is NoteKind.PARTIAL and len(fresh) == end - start
        cast.reduce.take(fresh, Frame(Kind.RESULT, 0, 0, content_of(note), note.buffers) if whole else None)


def combine(agent: MessageLink, frame: Frame, info: ProcInfo) -> None:
    """Start combining the results that the agent sent; the combined value goes back to the agent.

    Raises:
        FrameError: the frame is malformed.
    """
    order = parse_order(frame)
    Thread(partial(_combine, agent, order, info))


def _combine(agent: MessageLink, order: Order, info: ProcInfo) -> None:
    key = order.origin, order.number
    where = f"proc {info.rank} on {info.host}, which combined results"
    span = order.parts[0].place, span_of(order.parts[-1])[1]
    try:
        body, buffers = pack_result(_fold(order))
        agent.send(pack_notes([pack_span(NoteKind.PARTIAL, key, span, body, buffers)]))
    except BaseException as error:  # noqa: BLE001 user code; the caller waits for an answer in any case
        with contextlib.suppress(TransportError):  # a proc ends with its agent
            send_failure(where, error, lambda *given: agent.send(pack_notes([Note(NoteKind.FAILURE, *key, 0, *given)])))


def _fold(order: Order) -> object:
    inner: Any = loads(order.functions)
    functions: Any = loads(*inner)
    folding: Folding[object, object] = Folding(*functions)
    return folding.fold((part.tag is NoteKind.PARTIAL, loads(content_of(part), part.buffers)) for part in order.parts)
