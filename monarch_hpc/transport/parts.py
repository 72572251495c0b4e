"""Frames that are larger than a channel carries: cut into parts by the sender, and put together by the receiver.

The first part holds the header of the whole frame. The others hold its body and its buffers, one after the other, and
come in order; other frames of the channel may come between them. Nothing is copied on the way to a socket, nor from it
where the parts land in place, see `transport.secure.records.Landing`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence

from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.transport.arrival import allocate, allocate_all
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    MAX_BUFFERS,
    MAX_VALUE_BYTES,
    Buffer,
    Container,
    Frame,
    FrameHead,
    Kind,
    RefusedBuffers,
    pack_head,
    parse_head,
)

__all__ = ["PartReader", "Step", "cut", "send_in_parts"]

_PART_BYTES = 256 << 20
"""Size of a part, if frames may be so large: a fraction of a second on any network, after which other frames of the
channel get a turn; and the most that a receiver holds in addition to the value."""

_MAX_OPEN = 1024
"""Frames of one channel that may be arriving in parts: more than a process has threads that send."""


class Step(enum.IntEnum):
    """The meaning of a part."""

    BEGIN = 0  # the body is the header of the whole frame
    DATA = 1  # the buffers are the next bytes
    GIVE_UP = 2  # the sender cannot go on


def cut(frame: Frame, number: int, max_frame_bytes: int) -> Iterator[Frame]:
    """Yield the parts of *frame*.

    Args:
        number: distinguishes the parts from those of other frames of this channel.
        max_frame_bytes: config key `transport.max_frame_bytes`.

    Raises:
        FrameError: the frame has too many buffers, or too large a body.
    """
    yield Frame(Kind.PART, number, Step.BEGIN, pack_head(frame))
    most_bytes = max(min(_PART_BYTES, max_frame_bytes - HEAD_BYTES - 8 * MAX_BUFFERS), 1)
    for parts in (frame.body,), frame.buffers:
        views: list[memoryview] = []
        left = most_bytes
        for view in [memoryview(part).cast("B") for part in parts if len(part)]:
            at = 0
            while at < view.nbytes:
                piece = view[at : at + left]
                views.append(piece)
                at += piece.nbytes
                left -= piece.nbytes
                if not left or len(views) == MAX_BUFFERS:
                    yield Frame(Kind.PART, number, Step.DATA, b"", views)
                    views, left = [], most_bytes
        if views:
            yield Frame(Kind.PART, number, Step.DATA, b"", views)


def send_in_parts(frame: Frame, number: int, max_frame_bytes: int, send: Callable[[Frame], object]) -> None:
    """Send the parts of *frame*, see `cut`; tell the receiver if they end early."""
    try:
        for part in cut(frame, number, max_frame_bytes):
            send(part)
    except BaseException:  # Ctrl-C between two parts, or the channel has ended
        with contextlib.suppress(TransportError):
            send(Frame(Kind.PART, number, Step.GIVE_UP))
        raise


class _Whole:
    """A frame that is arriving in parts."""

    def __init__(self, head: FrameHead) -> None:
        self._head = head
        sizes = (head.body_bytes, *head.buffer_bytes)
        self.left = sum(sizes)
        self.landing: list[memoryview] = []  # the targets of the part that is arriving
        try:
            self._body, place = allocate(head.body_bytes, Container.MEMORY)
        except MemoryError as error:
            raise FrameError(f"the body of a frame: {error}") from error
        self._buffers, places = allocate_all(head, self.left)
        self._places = [*reversed(places), place]  # of the bytes that are still to come, the next one last

    def take(self, sizes: Sequence[int]) -> list[memoryview] | None:
        """Return the places of the next bytes, in pieces of *sizes*; None where they are dropped, or do not fit.

        Call once for each part.
        """
        targets: list[memoryview] = []
        places = self._places.copy()
        for size in sizes:
            while places and not places[-1].nbytes:
                places.pop()
            if not places or size > places[-1].nbytes:
                return None
            targets.append(places[-1][:size])
            places[-1] = places[-1][size:]
        self._places = places
        return targets

    def add(self, buffers: Sequence[Buffer]) -> None:
        """Add the next bytes.

        Raises:
            FrameError: they are more than are due.
        """
        if type(buffers) is RefusedBuffers:
            self._refuse(buffers.why)
            self.left -= sum(buffers.sizes)
        else:
            landed, self.landing = self.landing, []
            sizes = [memoryview(buffer).nbytes for buffer in buffers]
            self.left -= sum(sizes)
            if self.left >= 0 and not (landed and buffers is landed):
                self._copy(buffers, sizes)
        if self.left < 0:
            raise FrameError(f"the parts of a frame have {-self.left} bytes too many")

    def _copy(self, buffers: Sequence[Buffer], sizes: Sequence[int]) -> None:
        for buffer, size in zip(buffers, sizes, strict=True):
            places = self.take([size])
            if places is not None:
                places[0][:] = memoryview(buffer).cast("B")
            elif type(self._buffers) is not RefusedBuffers:
                raise FrameError(f"a part of a frame has {size} bytes, more than its buffer")

    def _refuse(self, why: str) -> None:
        if type(self._buffers) is not RefusedBuffers:
            self._buffers = RefusedBuffers(self._head.buffer_bytes, why)
            self._places = []

    @property
    def frame(self) -> Frame:
        """The frame, once nothing is left."""
        head = self._head
        return Frame(head.kind, head.dest, head.reply, self._body, self._buffers)


class PartReader:
    """The frames of one channel that are arriving in parts."""

    def __init__(self) -> None:
        self._open: dict[int, _Whole] = {}

    def land(self, head: FrameHead) -> list[memoryview] | None:
        """Targets for the buffers of an arriving part; see `transport.secure.records.Landing`."""
        whole = self._open.get(head.dest)
        if whole is None or head.reply != Step.DATA or not head.buffer_bytes:
            return None
        targets = whole.take(head.buffer_bytes)
        if targets is not None:
            whole.landing = targets
        return targets

    def on_part(self, part: Frame) -> Frame | None:
        """Take a part; return the whole frame with its last one.

        Raises:
            FrameError: it is malformed, or belongs to no frame.
        """
        number = part.dest
        whole = self._open.get(number)
        if part.reply == Step.BEGIN:
            if whole is not None or len(self._open) >= _MAX_OPEN:
                raise FrameError(f"a frame in parts has number {number}, with {len(self._open)} frames in parts")
            whole = self._open[number] = _Whole(parse_head(part.body, MAX_VALUE_BYTES))
        elif whole is None:
            raise FrameError(f"a part of frame {number}, which has not begun")
        elif part.reply == Step.DATA:
            whole.add(part.buffers)
        else:
            del self._open[number]
            return None
        if whole.left:
            return None
        del self._open[number]
        return whole.frame

    def clear(self) -> None:
        """Let the memory go of all frames that are arriving: the channel has ended."""
        self._open.clear()
