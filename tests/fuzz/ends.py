"""Real ends of channels and relays, which read fuzzed bytes piece by piece."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

from monarch_hpc.core.errors import FrameError, PeerLost, TransportError
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.api import FrameChannel, Peer
from monarch_hpc.transport.connect import relay
from monarch_hpc.transport.connect.relay import Relay
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.parts import PartReader, Step
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.secure.records import CHUNK_BYTES, RecordReader
from monarch_hpc.transport.sharing import SharedFrames
from monarch_hpc.transport.ucx.front import APART_BYTES, FRONT
from monarch_hpc.transport.ucx.hole_probe import Probe
from monarch_hpc.transport.ucx.lane import UcxLane
from monarch_hpc.wire.frames import Frame, FrameHead, Kind, pack_head, parse_head
from tests.system.support.parties import LIMITS

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx._ucx import Worker

__all__ = ["MAX_FRAME_BYTES", "name_of", "run_inbox", "run_lane", "run_parts", "run_records", "run_relay", "run_shared"]

MAX_FRAME_BYTES = 2**20
_PATIENCE_S = 10.0
_KEY = bytes(32)
_PEER = Peer(Role.PROC, "there", 22, 0, "3.11.0", "0.1.0", "tcp://127.0.0.1:1")


class _Escaped(logging.Handler):
    """Collects the errors of engine callbacks, which the engine only logs."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


class _Here:
    """A process driven by the waiting thread alone: its engine, its node, and the events received."""

    def __init__(self) -> None:
        self.engine = Engine()
        identity = Identity("ab" * 16, Role.CONTROLLER, "here", 11)
        limits = dataclasses.replace(LIMITS, max_frame_bytes=MAX_FRAME_BYTES)
        self.node = Node(self.engine, identity, _KEY, self, limits)
        self.frames: list[Frame] = []
        self.lost: list[TransportError] = []
        self.ended: list[str] = []
        self._escaped = _Escaped()
        logger = logging.getLogger("monarch_hpc.transport.engine.engine")
        logger.propagate = False
        logger.addHandler(self._escaped)

    def on_channel(self, channel: FrameChannel) -> None:
        """Not called: no peer dials this process."""

    def on_frame(self, _channel: FrameChannel, frame: Frame) -> None:
        """Keep a frame."""
        self.frames.append(frame)

    def on_lost(self, _channel: FrameChannel, error: TransportError) -> None:
        """Keep the error."""
        self.lost.append(error)

    def until(self, condition: Callable[[], bool]) -> None:
        """Drive until *condition* holds; raise errors that escaped meanwhile."""
        reached = self.engine.wait(lambda: bool(self._escaped.errors) or condition(), _PATIENCE_S)
        if self._escaped.errors:
            raise self._escaped.errors.pop()
        assert reached, "it hangs"

    @contextlib.contextmanager
    def fresh(self) -> Iterator[None]:
        """Clear the state before and after; no descriptor may stay open."""
        self._escaped.errors.clear()
        before = set(os.listdir("/proc/self/fd"))
        try:
            yield
            left = set(os.listdir("/proc/self/fd")) - before
            assert not left, f"{len(left)} descriptors stay open"
        finally:
            self.frames.clear()
            self.lost.clear()
            self.ended.clear()


@cache
def _here() -> _Here:
    return _Here()


def wire_of(data: bytes, seal: Cipher) -> Iterator[bytes]:
    """Encode an input for the wire: pieces of ``u8 how, u32 size``, mostly followed by so many bytes.

    How: 0 raw bytes, 1 a sealed record, 2 a sealed chunk, 3 a sealed chunk of zeros, given by its size alone.
    """
    at = 0
    zeros = 2 * MAX_FRAME_BYTES  # more would exceed the limit under test
    while at + 5 <= len(data):
        how, size = struct.unpack_from("<BI", data, at)
        at += 5
        if how % 4 == 3:
            size = min(size % (CHUNK_BYTES + 1), zeros)
            zeros -= size
            yield seal.seal(bytes(size))
            continue
        piece = data[at : at + size]
        at += len(piece)
        if how % 4:
            piece = seal.seal(piece)
        if how % 4 == 1:
            yield struct.pack("<I", len(piece))
        yield piece


def name_of(frames: list[Frame]) -> str:
    """Name the outcome, with one name per distinct continuation."""
    return "frames" if len(frames) > 1 else frames[0].kind.name if frames else "nothing"


def run_inbox(data: bytes) -> str:
    """Feed an input to an inbox twice, split differently: the outcome must be the same."""
    wire = b"".join(wire_of(data[1:], Cipher(_KEY)))
    step = 1 + data[0] if data else 1
    whole = _feed(wire, len(wire) or 1)
    pieces = _feed(wire, step if len(wire) < 4096 else 997 * step)
    assert whole == pieces, f"{whole[1]} in one piece, {pieces[1]} in several"
    frames, end = whole
    return f"{name_of(frames)}, then {end}"


def _feed(wire: bytes, step: int) -> tuple[list[Frame], str]:
    frames: list[Frame] = []
    inbox = RecordReader(Cipher(_KEY), MAX_FRAME_BYTES, frames.append)
    at = 0
    while at < len(wire):
        room = inbox.room()
        assert len(room), "no room"
        size = min(step, len(room), len(wire) - at)
        room[:size] = wire[at : at + size]
        at += size
        try:
            inbox.arrived(size)
        except FrameError as error:
            return frames, str(error)
    return frames, "more is due"


def run_records(data: bytes) -> tuple[list[Frame], TransportError]:
    """Send an input to an authenticated channel; return the resulting frames, and the channel's error."""
    here = _here()
    with here.fresh():
        near, far = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        wire = memoryview(b"".join(wire_of(data, Cipher(_KEY))))

        def adopt() -> None:
            here.node.adopt(near, _PEER, (Cipher(_KEY), Cipher(_KEY)))

        def gone() -> bool:
            """Send on, and return whether the channel has ended."""
            nonlocal wire
            with contextlib.suppress(BlockingIOError, ConnectionError):
                far.recv(2**20)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while wire:
                    wire = wire[far.send(wire) :]
                far.shutdown(socket.SHUT_WR)
            return bool(here.lost)

        with far:
            here.engine.call_soon(adopt)
            here.until(gone)
        assert len(here.lost) == 1 and not here.node.channels
        return list(here.frames), here.lost[0]


class _Lane:
    """Replaces UCX under a lane."""

    def close(self) -> None:
        """Nothing to close."""


class _Taken:
    """Collects the output of a lane."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.errors: list[TransportError] = []
        self.memory = self

    def land(self, head: FrameHead, withdraw: Callable[[], object]) -> list[memoryview] | None:
        """Have memory for every transfer that is not too large."""
        return [memoryview(bytearray(size)) for size in head.buffer_bytes if size < MAX_FRAME_BYTES]

    def on_lane_frame(self, frame: Frame) -> None:
        """Keep a frame."""
        self.frames.append(frame)

    def on_lane_error(self, error: TransportError) -> None:
        """Keep the error."""
        self.errors.append(error)

    def probe(self, asked_us: int) -> None:
        """There is no peer to ask."""


def run_lane(data: bytes) -> str:
    """Feed messages to a UCX lane: pieces of ``u8 how, u64 sequence, u32 size``, and so many bytes.

    How: 0 small frames, 1 a separate message, 2 the switch to this lane, 3 a message over the limit.
    """
    if importlib.util.find_spec("monarch_hpc.transport.ucx._ucx") is None:
        return "no binding was built"
    taken = _Taken()
    worker = SimpleNamespace(open=lambda _lane: _Lane())
    engine = cast(Engine, SimpleNamespace(clock=lambda: 0.0, call_later=lambda _delay_s, _call: None))
    probe = Probe(engine, list, lambda: None)
    lane = UcxLane(engine, cast("Worker", worker), MAX_FRAME_BYTES, probe, taken, "there", 2**20)
    at = 0
    while at + 13 <= len(data):
        how, sequence, size = struct.unpack_from("<BQI", data, at)
        at += 13
        piece = data[at : at + size]
        at += len(piece)
        match how % 4:
            case 0:
                lane.on_records(sequence, piece)
            case 1:
                lane.on_whole(sequence, FRONT, memoryview(piece))
                lane.land(sequence + 1, APART_BYTES)
                lane.on_bulk(sequence, bytearray(piece), None)
            case 2:
                lane.open()
            case _:
                lane.on_records(sequence, None)
    assert len(taken.errors) <= 1
    lane.close(PeerLost("there", "the input ended"), peer_died=False)
    return f"{name_of(taken.frames)}, then {taken.errors[0] if taken.errors else 'more is due'}"


def run_parts(data: bytes) -> str:
    """Feed parts of frames to a reader: pieces of ``u8 number, u8 step, u16 size``, and so many bytes.

    Parts of odd numbers land where the reader says, if it does.
    """
    reader = PartReader()
    frames: list[Frame] = []
    at = 0
    while at + 4 <= len(data):
        number, step, size = struct.unpack_from("<BBH", data, at)
        piece = data[at + 4 : at + 4 + size]
        at += 4 + size
        begins = step % 3 == Step.BEGIN
        part = Frame(Kind.PART, number, step % 3, piece if begins else b"", () if begins else [bytearray(piece)])
        targets = reader.land(parse_head(pack_head(part), MAX_FRAME_BYTES)) if number % 2 else None
        if targets is not None:
            targets[0][:] = piece
            part.buffers = targets
        try:
            whole = reader.on_part(part)
        except FrameError as error:
            return f"{name_of(frames)}, then {error}"
        frames += [] if whole is None else [whole]
    return f"{name_of(frames)}, then more is due"


def run_shared(data: bytes) -> str:
    """Feed a frame about shared memory: a ``u8`` step, and the body."""
    answers: list[Frame] = []
    shared = SharedFrames(answers.append, keeps=False)
    try:
        whole = shared.on_frame(Frame(Kind.SHARED, data[0] if data else 0, 1, data[1:]))
    except FrameError as error:
        return f"refused: {error}"
    finally:
        shared.close()
    return f"{name_of([] if whole is None else [whole])}, {name_of(answers)}"


@contextlib.contextmanager
def _no_network() -> Iterator[list[socket.socket]]:
    """Let a relay dial any address, and give it one end of a socket pair."""
    others: list[socket.socket] = []

    def begin_connect(address: str) -> socket.socket:
        parse_address(address)
        ours, theirs = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        others.append(theirs)
        return ours

    with patch.object(relay, "begin_connect", begin_connect):
        try:
            yield others
        finally:
            for other in others:
                other.close()


def run_relay(data: bytes) -> str:
    """Send an input to one end of a relay; its first byte selects the far end, or the near end with two streams."""
    here = _here()
    far = data[:1] == b"\1"
    failed: list[str] = []
    with here.fresh(), _no_network() as sockets:
        (read, feed), (drain, write) = os.pipe(), os.pipe()

        def begin() -> None:
            end = Relay(here.engine, read, write, far=far, over=here.ended.append)
            if not far:
                sockets.extend(end.open("tcp://127.0.0.1:80", failed.append) for _ in range(2))

        try:
            here.engine.call_soon(begin)
            os.write(feed, data[1:])
            os.close(feed)
            here.until(lambda: bool(here.ended))
        finally:
            os.close(drain)
        assert len(here.ended) == 1
        return f"{'streams' if sockets else 'no stream'}, {'one failed, ' if failed else ''}{here.ended[0]}"
