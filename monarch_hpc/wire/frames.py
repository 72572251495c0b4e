"""The frame: a fixed header, a small body, and buffers that are never copied into the body.

Layout, little-endian (24 bytes, then one u64 per buffer):

    u8  version     `PROTOCOL`
    u8  kind        `Kind`
    u16 num_buffers
    u32 body_bytes
    u64 dest        the target: an actor, a reply slot; 0 for the process itself
    u64 reply       the target of an answer; 0 for none
    u64 * num_buffers   the length of each buffer, in bytes; the upper two bits are its `Container`

The parser is total: any bytes give a `FrameHead` or a `FrameError`, and no length is used before it
is checked against the limits.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import overload

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError

__all__ = [
    "HEAD_BYTES",
    "MAX_BODY_BYTES",
    "MAX_BUFFERS",
    "MAX_VALUE_BYTES",
    "PROTOCOL",
    "Buffer",
    "Container",
    "Frame",
    "FrameHead",
    "Kind",
    "RefusedBuffers",
    "buffer_at",
    "bytes_of",
    "container_of",
    "copy_of",
    "pack_frame",
    "pack_head",
    "parse_alone",
    "parse_frame",
    "parse_head",
    "sizes_of",
]

PROTOCOL = 1
"""Version of everything on the wire; two sides with different versions refuse each other."""

MAX_BODY_BYTES = 64 * 2**20
"""A body is the short part of a pickle, or a control message; a larger one is a mistake (buffers carry bulk data)."""

MAX_BUFFERS = 4096
"""More buffers than this in one message cost more in bookkeeping than a copy would."""

MAX_VALUE_BYTES = 1 << 62
"""Limit of a header whose frame does not arrive at once, but in parts or in shared memory: no limit but memory's."""

Buffer = bytes | bytearray | memoryview

_ALIGNMENT = 16
"""A multiple of the alignment of any element; NumPy copies unaligned arrays at each use, and others refuse them."""

_HEAD = struct.Struct("<BBHIQQ")
HEAD_BYTES = _HEAD.size

_CONTAINER_SHIFT = 62  # of a buffer's entry in the header
_MAX_BUFFER_BYTES = (1 << _CONTAINER_SHIFT) - 1


class Container(enum.IntEnum):
    """The type of buffer that a value needs. A large buffer is received into one; a small one may come in any."""

    MEMORY = 0  # a memoryview
    BYTES = 1
    BYTEARRAY = 2


_CONTAINERS = (Container.MEMORY, Container.BYTES, Container.BYTEARRAY)


def container_of(buffer: Buffer) -> Container:
    """The container in which *buffer* arrives: its own, or for a `memoryview` of all of a `bytearray` that one."""
    if type(buffer) is bytes:
        return Container.BYTES
    if type(buffer) is bytearray:
        return Container.BYTEARRAY
    if type(buffer) is memoryview:
        owner = buffer.obj
        if type(owner) is bytearray and buffer.nbytes == len(owner):
            return Container.BYTEARRAY
    return Container.MEMORY


def copy_of(buffer: Buffer) -> bytes | bytearray:
    """Return *buffer* for another owner: a writable copy, or the same `bytes`."""
    return buffer if type(buffer) is bytes else bytearray(buffer)


class RefusedBuffers(Sequence[Buffer]):
    """The buffers of a frame that arrived at a process which could not hold them.

    Args:
        sizes: their lengths.
        why: what was missing.
    """

    __slots__ = ("sizes", "why")

    def __init__(self, sizes: tuple[int, ...], why: str) -> None:
        self.sizes = sizes
        self.why = why

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, place: int) -> Buffer: ...
    @overload
    def __getitem__(self, place: slice) -> RefusedBuffers: ...
    def __getitem__(self, place: int | slice) -> Buffer | RefusedBuffers:
        """Return some of them, still refused; a single one cannot be had.

        Raises:
            MemoryError: always, for a single one.
        """
        if isinstance(place, slice):
            return RefusedBuffers(self.sizes[place], self.why)
        raise MemoryError(self.why)


def sizes_of(buffers: Sequence[Buffer]) -> Sequence[int]:
    """The lengths of *buffers* in bytes."""
    if type(buffers) is RefusedBuffers:
        return buffers.sizes
    return [memoryview(buffer).nbytes for buffer in buffers]


def size_of(body: Buffer, buffers: Sequence[Buffer]) -> int:
    """The number of bytes of a body and its buffers."""
    return len(body) + sum(sizes_of(buffers))


class Kind(enum.IntEnum):
    """The kind of a frame."""

    CONTROL = 1  # JSON body, see wire.control
    SPAWN = 2  # make an actor: dest = actor id, reply = the actor that owns it, or 0
    CALL = 3  # run an endpoint: dest = actor id, reply = reply slot or 0; highest bit: see actor.cell.cancellation
    RESULT = 4  # dest = reply slot
    FAILURE = 5  # dest = reply slot; body is a pickled exception. dest = 0: an actor failed, reply = its owner
    STOP = 6  # stop an actor: dest = actor id, reply = reply slot or 0
    PING = 7  # heartbeat; handled by the transport
    BYE = 8  # the sender closes; body is the reason, UTF-8
    OFFER = 9  # the sender's fabrics, see transport.connect.negotiation; handled by the transport
    SWITCH = 10  # all later frames of the sender come on the lane; handled by the transport
    GET = 11  # read registered memory: reply = the operation, see transport.memory
    PUT = 12  # write registered memory: reply = the operation, buffers = the data
    DATA = 13  # answers GET and PUT, also of lists: dest = the operation
    CREDIT = 14  # returns credit for handled calls: dest = actor id, reply = bytes
    PROBE = 16  # dest = 0: answer with 1, on the lane and then here, see transport.ucx.hole_probe; without one, with 2
    CANCEL = 15  # the caller has given a call up: dest = actor id, reply = its reply slot
    PART = 17  # part of a larger frame: dest = its number, reply = a `transport.parts.Step`
    MEMORY = 18  # a request about registered memory: dest = a `transport.memory.requests.MemoryStep`
    SHARED = (
        19  # a frame whose buffers lie in shared memory: dest = a `transport.sharing.ShareStep`, reply = its number
    )
    PULL = 20  # about copies that receivers pull: dest = a `transport.pulls.requests.PullStep`, reply = the receiver
    CAST = 21  # one message to many procs: dest = actor id, reply = its number, see wire.casts
    NOTES = 22  # answers to casts, and other events of them
    MARK = 23  # orders casts among a channel's frames: dest = a `wire.casts.Mark`, reply = a cast's number
    REDUCE = 24  # combine answers to a cast: dest = its sender, reply = its number, see wire.reductions
    GET_LIST = 25  # as GET, of many pieces: body = the list, see transport.memory.framed.lists
    PUT_LIST = 26  # as PUT, of many pieces: body = the list, buffers = their data, joined


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(slots=True)
class Frame:
    """One message between two processes.

    The buffers of a received frame belong to the receiver and, except for `bytes`, are writable. They are
    `RefusedBuffers` if it could not hold them.
    """

    kind: Kind
    dest: int = 0
    reply: int = 0
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()


def bytes_of(frame: Frame) -> int:
    """The bytes of *frame* on the wire, before they are sealed."""
    return HEAD_BYTES + 8 * len(frame.buffers) + len(frame.body) + sum(sizes_of(frame.buffers))


@dataclass(frozen=True, slots=True)
class FrameHead:
    """A parsed header.

    Attributes:
        buffer_bytes: length of each buffer that follows the body.
        containers: the container of each.
        size: length of the header itself with its table of lengths.
    """

    kind: Kind
    dest: int
    reply: int
    body_bytes: int
    buffer_bytes: tuple[int, ...]
    containers: tuple[Container, ...]
    size: int


def pack_head(frame: Frame) -> bytes:
    """Render the header of *frame*, table of lengths included.

    Raises:
        FrameError: the frame is larger than the protocol allows.
    """
    num = len(frame.buffers)
    body_bytes = len(frame.body)
    if not num and body_bytes <= MAX_BODY_BYTES:
        return _HEAD.pack(PROTOCOL, frame.kind, 0, body_bytes, frame.dest, frame.reply)
    if num > MAX_BUFFERS or body_bytes > MAX_BODY_BYTES:
        raise FrameError(
            f"{body_bytes} bytes of body and {num} buffers; at most {MAX_BODY_BYTES} and {MAX_BUFFERS}: "
            "send the value in several messages, or in fewer pieces"
        )
    head = _HEAD.pack(PROTOCOL, frame.kind, num, body_bytes, frame.dest, frame.reply)
    entries = [memoryview(one).nbytes | container_of(one) << _CONTAINER_SHIFT for one in frame.buffers]
    return head + struct.pack(f"<{num}Q", *entries)


def pack_frame(frame: Frame) -> bytes:
    """Render all of *frame*, for frames that are small enough to copy.

    Raises:
        FrameError: the frame is larger than the protocol allows.
    """
    body = frame.body
    if frame.buffers or len(body) > MAX_BODY_BYTES:
        return b"".join((pack_head(frame), body, *frame.buffers))
    return _HEAD.pack(PROTOCOL, frame.kind, 0, len(body), frame.dest, frame.reply) + body


def parse_head(data: Buffer, max_frame_bytes: int) -> FrameHead:
    """Read the header at the start of *data*.

    Raises:
        FrameError: the bytes are not a header of this protocol, or announce more than *max_frame_bytes*.
    """
    if len(data) < HEAD_BYTES:
        raise FrameError(f"{len(data)} bytes, a header has {HEAD_BYTES}")
    version, kind, num, body_bytes, dest, reply = _HEAD.unpack_from(data)
    known = _check_head(version, kind, num, body_bytes)
    size = HEAD_BYTES + 8 * num
    if len(data) < size:
        raise FrameError(f"{len(data)} bytes, a header with {num} buffers has {size}")
    lengths, containers = _parse_table(struct.unpack_from(f"<{num}Q", data, HEAD_BYTES))
    total = body_bytes + sum(lengths)
    if total > max_frame_bytes:
        raise FrameError(f"{total} bytes, at most {max_frame_bytes} (config key 'transport.max_frame_bytes')")
    return FrameHead(known, dest, reply, body_bytes, lengths, containers, size)


def _parse_table(entries: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Container, ...]]:
    kinds = [entry >> _CONTAINER_SHIFT for entry in entries]
    if any(kind >= len(_CONTAINERS) for kind in kinds):
        raise FrameError(f"a buffer of kind {max(kinds)}")
    return tuple(entry & _MAX_BUFFER_BYTES for entry in entries), tuple(_CONTAINERS[kind] for kind in kinds)


def parse_alone(data: bytes) -> Frame | None:
    """Read *data* if it is one whole frame without buffers, as most small ones are; None for anything else."""
    if len(data) >= HEAD_BYTES:
        version, kind, num, body_bytes, dest, reply = _HEAD.unpack_from(data)
        if version == PROTOCOL and not num and body_bytes == len(data) - HEAD_BYTES and kind in _KINDS:
            return Frame(_KINDS[kind], dest, reply, data[HEAD_BYTES:])
    return None


def parse_frame(data: Buffer, at: int = 0) -> tuple[Frame, int] | None:
    """Read the frame that begins *at* bytes into *data*; return it and its end.

    The frame's buffers are views of *data*, or copies where *data* is read-only.

    Returns:
        None if *data* ends before the frame does.

    Raises:
        FrameError: the bytes are not a frame of this protocol.
    """
    begin = at + HEAD_BYTES
    if len(data) < begin:
        return None
    version, kind, num, body_bytes, dest, reply = _HEAD.unpack_from(data, at)
    known = _KINDS.get(kind)
    if version != PROTOCOL or known is None or num or body_bytes > MAX_BODY_BYTES:
        known = _check_head(version, kind, num, body_bytes)
    end = begin + body_bytes
    if not num:
        return (Frame(known, dest, reply, data[begin:end]), end) if end <= len(data) else None
    begin += 8 * num
    if len(data) < begin:
        return None
    lengths, _ = _parse_table(struct.unpack_from(f"<{num}Q", data, begin - 8 * num))
    end = begin + body_bytes
    if end + sum(lengths) > len(data):
        return None
    body = data[begin:end]
    view = memoryview(data)
    buffers: list[Buffer] = []
    for length in lengths:
        buffers.append(buffer_at(view, end, length))
        end += length
    return Frame(known, dest, reply, body, buffers), end


def buffer_at(data: memoryview, begin: int, num_bytes: int) -> Buffer:
    """Return a buffer of a received frame: a view of *data*, or a copy where *data* is read-only or would be unaligned.

    *data* itself must be aligned.
    """
    part = data[begin : begin + num_bytes]
    return bytearray(part) if begin % _ALIGNMENT or part.readonly else part


def _check_head(version: int, kind: int, num: int, body_bytes: int) -> Kind:
    if version != PROTOCOL:
        raise FrameError(f"protocol {version}, this side speaks {PROTOCOL}")
    known = _KINDS.get(kind)
    if known is None:
        raise FrameError(f"kind {kind}")
    if num > MAX_BUFFERS:
        raise FrameError(f"{num} buffers, at most {MAX_BUFFERS}")
    if body_bytes > MAX_BODY_BYTES:
        raise FrameError(f"{body_bytes} bytes of body, at most {MAX_BODY_BYTES}")
    return known
