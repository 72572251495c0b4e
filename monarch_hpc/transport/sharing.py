"""Frames whose buffers lie in fixed shared memory: a peer on the same host is sent their places, and maps them itself.

One message to many processes of a host so costs one copy of its buffers, in the time to write them and in memory. Each
receiver maps them private: it may write to what it got, and pays for the pages that it writes.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections.abc import Callable, Sequence

from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.storage.segment import (
    SPAN_BYTES,
    Access,
    Span,
    create,
    create_parts,
    find,
    hold_spans,
    open_span,
    open_spans,
    write_fixed,
)
from monarch_hpc.transport.arrival import admit
from monarch_hpc.wire.frames import (
    MAX_VALUE_BYTES,
    Buffer,
    Container,
    Frame,
    FrameHead,
    Kind,
    RefusedBuffers,
    container_of,
    pack_head,
    parse_head,
    sizes_of,
)

__all__ = ["ShareStep", "SharedFrames", "copy_to_share", "is_shareable"]

_NO_SPAN = bytes(SPAN_BYTES)  # of a buffer that travels with the frame


class ShareStep(enum.IntEnum):
    """The meaning of a SHARED frame; its `reply` is a number that the sender of the memory chose."""

    PROBE = 0  # can you open this? The body is a `Span`
    OPENED = 1  # answers PROBE and FRAME: its sender need not keep the memory
    REFUSED = 2  # answers PROBE
    FRAME = 3  # a frame; the body is its header, the spans of its buffers, and its body; the buffers are the others


def is_shareable(buffers: Sequence[Buffer], least_bytes: int) -> bool:
    """Whether *buffers* have *least_bytes* of arrays and tensors, and less than that of `bytes` and `bytearray`.

    These have memory of their own in each process, to which they are copied anyway.
    """
    return _are_shareable(sizes_of(buffers), [container_of(buffer) for buffer in buffers], least_bytes)


def _are_shareable(sizes: Sequence[int], containers: Sequence[Container], least_bytes: int) -> bool:
    shared = sum(size for size, container in zip(sizes, containers, strict=True) if container is Container.MEMORY)
    return shared >= least_bytes > sum(sizes) - shared


def copy_to_share(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return copies of *buffers* in memory that `SharedFrames` shares; *buffers* themselves if there is none."""
    views = [memoryview(buffer) for buffer in buffers if container_of(buffer) is Container.MEMORY]
    try:
        admit(sum(view.nbytes for view in views))
        copies = iter(write_fixed([view.cast("B") if view.nbytes else memoryview(b"") for view in views]))
    except (OSError, MemoryError):  # sent the usual way, which needs less at a time
        return buffers
    return [next(copies) if container_of(buffer) is Container.MEMORY else buffer for buffer in buffers]


class SharedFrames:
    """The frames of one channel whose buffers the other side maps.

    Args:
        send: sends a frame to the peer.
        keeps: whether this process hands on what it gets: it then neither maps it for writing, nor closes it.

    Attributes:
        asked: whether the peer was asked if it can open memory of this process.
        agreed: whether it can.
    """

    def __init__(self, send: Callable[[Frame], object], *, keeps: bool) -> None:
        self.asked = False
        self.agreed = False
        self._send = send
        self._keeps = keeps
        self._numbers = itertools.count(1)
        self._given: dict[int, object] = {}  # memory that the peer has not opened yet
        self._asking: dict[int, Callable[[], None]] = {}

    # ---- sending; any thread ----

    def ask(self, answered: Callable[[], None]) -> None:
        """Find out whether the peer can open memory of this process; it shares a host and a user, if so.

        Args:
            answered: called once, on the driver or at once, with the outcome in `agreed`; also if the channel ends.
        """
        self.asked = True
        try:
            memory = create(1)
        except OSError:
            answered()
            return
        span = find(address_of(memory), 1, fixed=False)
        assert span is not None, "it has just been made"
        number = next(self._numbers)
        self._given[number] = memory
        self._asking[number] = answered
        try:
            self._send(Frame(Kind.SHARED, ShareStep.PROBE, number, span.pack()))
        except TransportError:  # its end is reported
            self._answer(number)

    def wrap(self, frame: Frame) -> Frame:
        """Return *frame* with the places of its buffers instead of them; *frame* itself where they cannot be shared."""
        if not self.agreed:
            return frame
        spans: list[bytes] = []
        others: list[Buffer] = []
        for buffer in frame.buffers:
            span = _find(buffer) if container_of(buffer) is Container.MEMORY else None
            spans.append(_NO_SPAN if span is None else span.pack())
            if span is None:
                others.append(buffer)
        if len(others) == len(spans):
            return frame
        number = next(self._numbers)
        self._given[number] = frame.buffers
        return Frame(Kind.SHARED, ShareStep.FRAME, number, b"".join((pack_head(frame), *spans, frame.body)), others)

    def withdraw(self, frame: Frame) -> None:
        """Let the memory go of a frame that `wrap` returned and that could not be sent; any other is ignored."""
        if frame.kind is Kind.SHARED and frame.dest == ShareStep.FRAME:
            self._given.pop(frame.reply, None)

    # ---- receiving; on the driver ----

    def land(self, head: FrameHead, least_bytes: int) -> list[memoryview] | None:
        """Targets for the buffers of a cast that this process hands on; see `transport.secure.records.Landing`.

        Args:
            least_bytes: how much it must be.
        """
        sizes, containers = head.buffer_bytes, head.containers
        if not self._keeps or Container.BYTES in containers or not _are_shareable(sizes, containers, least_bytes):
            return None
        shared = [container is Container.MEMORY for container in containers]
        try:
            admit(sum(sizes))
            parts = iter(create_parts([size for size, is_shared in zip(sizes, shared, strict=True) if is_shared]))
        except (OSError, MemoryError):  # it arrives as other frames do, or is refused as they are
            return None
        return [
            next(parts) if is_shared else memoryview(bytearray(size))
            for size, is_shared in zip(sizes, shared, strict=True)
        ]

    def on_frame(self, frame: Frame) -> Frame | None:
        """Handle a SHARED frame; return the frame that came by it.

        Raises:
            FrameError: it is malformed.
        """
        number = frame.reply
        if frame.dest == ShareStep.FRAME:
            whole = self._open(memoryview(frame.body), frame.buffers)
            self._reply(ShareStep.OPENED, number)
            return whole
        if frame.dest == ShareStep.PROBE:
            self._reply(ShareStep.OPENED if _can_open(frame.body) else ShareStep.REFUSED, number)
        elif frame.dest in (ShareStep.OPENED, ShareStep.REFUSED):
            if number in self._asking:
                self.agreed = frame.dest == ShareStep.OPENED
            self._answer(number)
        else:
            raise FrameError(f"a frame about shared memory with step {frame.dest}")
        return None

    def _open(self, data: memoryview, others: Sequence[Buffer]) -> Frame:
        head = parse_head(data, MAX_VALUE_BYTES)
        sizes = head.buffer_bytes
        ends = [head.size + SPAN_BYTES * place for place in range(len(sizes) + 1)]
        if len(data) != ends[-1] + head.body_bytes:
            raise FrameError(f"a frame in shared memory of {len(data)} bytes, not {ends[-1] + head.body_bytes}")
        packed = [bytes(data[at : at + SPAN_BYTES]) for at in ends[:-1]]
        spans = [Span.parse(one) for one in packed if one != _NO_SPAN]
        lengths, rest = iter([span.num_bytes for span in spans]), iter(sizes_of(others))
        if [next(rest if one == _NO_SPAN else lengths, -1) for one in packed] != list(sizes) or any(True for _ in rest):
            raise FrameError("a frame in shared memory whose buffers have other lengths")
        buffers: Sequence[Buffer]
        if isinstance(others, RefusedBuffers) and others:
            buffers = RefusedBuffers(sizes, others.why)
        else:
            try:
                views = iter(hold_spans(spans) if self._keeps else open_spans(spans, Access.PRIVATE))
                left = iter(others)
                buffers = [next(left) if one == _NO_SPAN else next(views) for one in packed]
            except OSError as error:
                buffers = RefusedBuffers(sizes, f"its shared memory cannot be opened: {error}")
        return Frame(head.kind, head.dest, head.reply, bytes(data[ends[-1] :]), buffers)

    def _reply(self, step: ShareStep, number: int) -> None:
        with contextlib.suppress(TransportError):  # its end is reported
            self._send(Frame(Kind.SHARED, step, number))

    def _answer(self, number: int) -> None:
        self._given.pop(number, None)
        answered = self._asking.pop(number, None)
        if answered is not None:
            answered()

    def close(self) -> None:
        """Drop all state: the channel has ended."""
        self.agreed = False
        self._given.clear()
        for number in list(self._asking):
            self._answer(number)


def _find(buffer: Buffer) -> Span | None:
    view = memoryview(buffer)
    return find(address_of(view), view.nbytes, fixed=True)


def _can_open(body: Buffer) -> bool:
    try:
        span = Span.parse(bytes(body))
        return span.near and open_span(span, Access.READ).nbytes == span.num_bytes
    except (OSError, ValueError):
        return False
