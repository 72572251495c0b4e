"""The wire format of `tcp`: frames in sealed records. Bytes in, frames out, and the reverse; no socket.

A record is `u32 length | sealed bytes`. It holds whole frames, of at most `INLINE_BYTES` together, or ends with
the beginning of a larger one: its header, and its body if that is small. The rest of the larger frame
follows as sealed chunks: each buffer in pieces of `CHUNK_BYTES`, the last one shorter. The header has the lengths.
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from monarch_hpc.core.errors import AuthenticationError, FrameError
from monarch_hpc.transport.arrival import allocate, allocate_all
from monarch_hpc.transport.secure.noise import TAG_BYTES, Cipher
from monarch_hpc.transport.secure.scratch import Scratch
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    MAX_BUFFERS,
    Buffer,
    Container,
    Frame,
    FrameHead,
    parse_alone,
    parse_frame,
    parse_head,
)

__all__ = ["CHUNK_BYTES", "INLINE_BYTES", "Bulk", "Landing", "RecordReader", "RecordWriter"]

INLINE_BYTES = 64 * 1024
"""Up to this size one copy into one record is cheaper than several records, and the sender need not wait. The header of
a larger frame goes ahead: it wakes the receiver while the rest is sealed."""

_BODY_BYTES = 4096
"""Up to this size a large frame's body is sent with its header."""

CHUNK_BYTES = 512 * 1024
"""Large enough that the cost per chunk is negligible, small enough that a chunk stays in a core's cache between the
kernel's copy and the cipher."""

Landing = Callable[[FrameHead, Buffer | None], list[memoryview] | None]
"""Chooses the target of a large frame's buffers before they arrive: given the header and the body, it returns writable
views of the lengths in the header, or None for fresh memory. The channel reads the list again for every chunk: to
withdraw a view before the frame is complete, put another one in its place. A large body comes later: then None is given
for it, and no view can be withdrawn."""

_LENGTH = struct.Struct("<I")
_MAX_RECORD_BYTES = HEAD_BYTES + 8 * MAX_BUFFERS + INLINE_BYTES + TAG_BYTES
_READ_BYTES = 128 * 1024
assert _MAX_RECORD_BYTES + _LENGTH.size <= _READ_BYTES

_COPIED_BYTES = 4096
"""Records up to this size become `bytes`, from which a frame's writable buffers are copied: cheaper than views."""

_GREEDY_BYTES = 16 * 1024
"""Smaller chunks are read together with what follows them, larger ones alone: then the next one begins at the front of
the memory, and nothing is moved."""

_NO_BYTES = memoryview(b"")


_SCRATCH = Scratch(CHUNK_BYTES + TAG_BYTES + _MAX_RECORD_BYTES + _LENGTH.size)

_REFUSED = memoryview(bytearray(CHUNK_BYTES))
"""Place for the buffers of frames that cannot be held, of all channels; nobody reads it.

Made beforehand, as there is no memory when it is needed; the kernel gives it its pages once it is written to.
"""


class Bulk:
    """An outgoing frame that is too large to copy.

    Attributes:
        size: its bytes.
        sealed: whether its buffers may be modified again.
    """

    __slots__ = ("head", "pieces", "sealed", "size")

    def __init__(self, frame: Frame, head: bytes, size: int) -> None:
        inline = len(frame.body) <= _BODY_BYTES
        self.head = b"".join((head, frame.body)) if inline else head
        self.pieces = _pieces(frame.buffers if inline else (frame.body, *frame.buffers))
        self.size, self.sealed = size, False

    @property
    def begun(self) -> bool:
        """Whether its header has been sent."""
        return not self.head

    def own(self) -> None:
        """Copy what is not sealed yet, so that its buffers may be modified."""
        self.pieces = iter([memoryview(bytes(piece)) for piece in self.pieces])


def _pieces(parts: Sequence[Buffer]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        if view.nbytes:
            view = view.cast("B")
        for at in range(0, view.nbytes, CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


class RecordWriter:
    """Queued frames, in order. Any thread may append to the queues; the methods are for one thread at a time.

    Attributes:
        queued: packed small frames, and large ones.
        urgent: packed small frames that depend on no other; they overtake *queued*, but never split a large frame.
        sealed_bytes: bytes of all frames that left the queue for writing.
    """

    __slots__ = ("_cipher", "_scratch", "queued", "sealed_bytes", "urgent")

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self._scratch: memoryview | None = None
        self.queued: deque[bytes | Bulk] = deque()
        self.urgent: deque[bytes] = deque()
        self.sealed_bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether any frame is queued."""
        return bool(self.queued or self.urgent)

    def seal(self, frames: bytes) -> bytes:
        """Return a record of whole frames, of at most `INLINE_BYTES` together, that were never queued."""
        return _LENGTH.pack(len(frames) + TAG_BYTES) + self._cipher.seal(frames)

    def next_write(self) -> bytes | memoryview:
        """Return the next bytes to write, empty if nothing is queued; valid until the next call."""
        queued = self.queued
        while queued or self.urgent:
            first = queued[0] if queued else None
            if self.urgent and not (isinstance(first, Bulk) and first.begun):
                urgent = self.urgent.popleft()
                self.sealed_bytes += len(urgent)
                return self.seal(urgent)
            assert first is not None, "nothing has begun"
            if isinstance(first, Bulk):
                written = self._seal_bulk(first)
                if not written:
                    continue
                return written
            queued.popleft()
            if queued and not isinstance(queued[0], Bulk):
                first = self._gather(first)
            self.sealed_bytes += len(first)
            return self.seal(first)
        if self._scratch is not None:
            _SCRATCH.give(self._scratch)
            self._scratch = None
        return _NO_BYTES

    def _gather(self, first: bytes) -> bytes:
        queued = self.queued
        parts = [first]
        size = len(first)
        while queued:
            following = queued[0]
            if isinstance(following, Bulk) or size + len(following) > INLINE_BYTES:
                break
            parts.append(following)
            size += len(following)
            queued.popleft()
        return b"".join(parts)

    def _seal_bulk(self, bulk: Bulk) -> bytes | memoryview:
        if bulk.head:
            head, bulk.head = bulk.head, b""
            return self.seal(head)
        scratch = self._scratch
        if scratch is None:
            scratch = self._scratch = _SCRATCH.take()
        at = 0
        while at + CHUNK_BYTES + TAG_BYTES <= len(scratch):
            piece = next(bulk.pieces, None)
            if piece is None:
                self.queued.popleft()
                self.sealed_bytes += bulk.size
                bulk.sealed = True
                break
            end = at + len(piece) + TAG_BYTES
            self._cipher.seal_into(piece, scratch[at:end])
            at = end
        return scratch[:at]

    def clear(self) -> None:
        """Drop all queued frames."""
        self.queued.clear()
        self.urgent.clear()
        self._scratch = None


class RecordReader:
    """Turns received bytes into frames.

    Args:
        deliver: called with each frame, in order.

    Attributes:
        landing: see `Landing`.
        closed: whether `close` was called.
    """

    def __init__(self, cipher: Cipher, max_frame_bytes: int, deliver: Callable[[Frame], None]) -> None:
        self.landing: Landing | None = None
        self.closed = False
        self._cipher = cipher
        self._max_frame_bytes = max_frame_bytes
        self._deliver = deliver
        # Mapped: most channels use a page or two of it, and the other pages are never allocated.
        self._small = self._view = memoryview(mmap.mmap(-1, _READ_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._start = 0
        self._end = 0
        # the large frame that is arriving
        self._head: FrameHead | None = None
        self._body: Buffer = b""
        self._sizes: Sequence[int] = ()  # of the body, unless it came with the header, and of the buffers
        self._parts: list[memoryview] = []
        self._buffers: Sequence[Buffer] = ()
        self._part = 0
        self._filled = 0

    def close(self) -> None:
        """Stop delivery, also of frames that have arrived, and let the memory go of one that is arriving."""
        self.closed = True
        self._head, self._body, self._parts, self._buffers = None, b"", [], ()
        self._view = self._small

    def room(self) -> memoryview:
        """Return the memory for the next bytes; never empty, and never longer than should be read now."""
        if not self._end and self._head is None:
            return self._view
        need = _MAX_RECORD_BYTES + _LENGTH.size
        if self._head is not None:
            need = self._due() + TAG_BYTES
            if need > len(self._view):
                self._move(_SCRATCH.take())
        if self._start and self._start + need > len(self._view):
            self._move(self._view)
        if self._head is not None and need > _GREEDY_BYTES and not self._at_last():
            return self._view[self._end : self._start + need]
        return self._view[self._end :]

    def _move(self, to: memoryview) -> None:
        held = self._end - self._start
        to[:held] = self._view[self._start : self._end]
        self._view = to
        self._start, self._end = 0, held

    def arrived(self, num_bytes: int) -> None:
        """Process *num_bytes* that were read into `room`.

        Raises:
            FrameError: the bytes were not sealed by the peer, or are not valid frames.
        """
        if not self._end and self._head is None and TAG_BYTES < num_bytes <= _COPIED_BYTES:
            # Usually this is one small record with one small frame: skip the bookkeeping for all other cases.
            (size,) = _LENGTH.unpack_from(self._view)
            if TAG_BYTES < size == num_bytes - _LENGTH.size and not self.closed:
                plain = self._open(self._view[_LENGTH.size : num_bytes])
                alone = parse_alone(plain)
                if alone is None:
                    self._take_frames(plain)
                else:
                    self._deliver(alone)
                return
        self._end += num_bytes
        while not self.closed:
            held = self._end - self._start
            if self._head is not None:
                size = self._due() + TAG_BYTES
                if held < size:
                    break
                self._take_chunk(size)
                continue
            if held < _LENGTH.size:
                break
            (size,) = _LENGTH.unpack_from(self._view, self._start)
            if not TAG_BYTES < size <= _MAX_RECORD_BYTES:
                raise FrameError(f"a record of {size} bytes")
            begin = self._start + _LENGTH.size
            if self._end < begin + size:
                break
            self._start = begin + size
            self._take_record(self._view[begin : begin + size])
        if self._start == self._end:
            self._start = self._end = 0

    def _open(self, sealed: memoryview) -> bytes:
        try:
            return self._cipher.open(sealed)
        except AuthenticationError as error:
            raise FrameError("a record that the other side did not seal") from error

    def _take_record(self, sealed: memoryview) -> None:
        if len(sealed) <= _COPIED_BYTES:
            self._take_frames(self._open(sealed))
            return
        plain = memoryview(bytearray(len(sealed) - TAG_BYTES))
        try:
            self._cipher.open_into(sealed, plain)
        except AuthenticationError as error:
            raise FrameError("a record that the other side did not seal") from error
        self._take_frames(plain)

    def _take_frames(self, plain: bytes | memoryview) -> None:
        at = 0
        while at < len(plain) and not self.closed:
            parsed = parse_frame(plain, at)
            if parsed is None:
                self._begin(memoryview(plain)[at:])
                return
            frame, at = parsed
            self._deliver(frame)

    # ---- large frames ----

    def _begin(self, plain: memoryview) -> None:
        head = parse_head(plain, self._max_frame_bytes)
        total = head.size + head.body_bytes + sum(head.buffer_bytes)
        inline = head.body_bytes <= _BODY_BYTES
        if total <= INLINE_BYTES or len(plain) != head.size + (head.body_bytes if inline else 0):
            raise FrameError(f"{len(plain)} bytes in a record for a frame of {total}")
        self._parts = []
        if inline:
            self._body, self._sizes = plain[head.size :], head.buffer_bytes
        else:
            try:
                self._body, view = allocate(head.body_bytes, Container.MEMORY)
            except MemoryError as error:
                raise FrameError(f"the body of a frame: {error}") from error
            self._parts, self._sizes = [view], (head.body_bytes, *head.buffer_bytes)
        landed = None if self.landing is None else self.landing(head, self._body if inline else None)
        if landed is not None:
            # The list itself, see `Landing`.
            self._buffers, self._parts = landed, landed if inline else [*self._parts, *landed]
        else:
            self._buffers, views = allocate_all(head, total)
            self._parts += views
        self._head = head
        self._part, self._filled = -1, 0
        self._next_part()

    def _due(self) -> int:
        """Length of the next chunk, decrypted."""
        return min(CHUNK_BYTES, self._sizes[self._part] - self._filled)

    def _at_last(self) -> bool:
        """Whether the next chunk is the last of its frame."""
        return self._part == len(self._sizes) - 1 and self._sizes[-1] - self._filled <= CHUNK_BYTES

    def _take_chunk(self, size: int) -> None:
        filled = self._filled + size - TAG_BYTES
        if self._part < len(self._parts):
            place = self._parts[self._part][self._filled : filled]
        else:
            place = _REFUSED[: size - TAG_BYTES]
        try:
            self._cipher.open_into(self._view[self._start : self._start + size], place)
        except AuthenticationError as error:
            place[:] = bytes(len(place))  # it may be a user's memory, and holds bytes that an attacker chose
            raise FrameError("a chunk that the other side did not seal") from error
        self._start += size
        self._filled = filled
        if filled == self._sizes[self._part]:
            self._next_part()

    def _next_part(self) -> None:
        """Go to the next part that is not empty; after the last one deliver the frame."""
        self._filled = 0
        self._part += 1
        while self._part < len(self._sizes) and not self._sizes[self._part]:
            self._part += 1
        if self._part < len(self._sizes):
            return
        head, buffers = self._head, self._buffers
        assert head is not None
        self._head, self._parts, self._buffers = None, [], ()
        if self._view is not self._small and self._end - self._start <= len(self._small):
            scratch = self._view
            self._move(self._small)
            _SCRATCH.give(scratch)
        body, self._body = self._body, b""
        self._deliver(Frame(head.kind, head.dest, head.reply, body, buffers))
