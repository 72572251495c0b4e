"""The fuzz targets: every parser of other processes' bytes, with the invariant that each must keep.

The invariant: any bytes give a value or one of the documented errors, in bounded time and memory. `Target.run` returns
a short name of the outcome, which tells inputs apart, and raises if the invariant is broken.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monarch_hpc.core.errors import AuthenticationError, FrameError, PeerLost, TransportError, VersionMismatch
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.api import Capabilities
from monarch_hpc.transport.connect.negotiation import Offer, decode_offer, encode_offer
from monarch_hpc.transport.parts import cut
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, HELLO_BYTES, Accepting, Dialing, check_versions
from monarch_hpc.transport.secure.noise import PUBLIC_BYTES, TAG_BYTES, Initiator, Responder
from monarch_hpc.transport.sharing import SharedFrames, ShareStep, copy_to_share
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    MAX_BODY_BYTES,
    MAX_BUFFERS,
    Frame,
    Kind,
    pack_head,
    parse_frame,
    parse_head,
)
from tests.fuzz.ends import MAX_FRAME_BYTES, name_of, run_inbox, run_lane, run_parts, run_records, run_relay, run_shared
from tests.fuzz.memories import memory_inputs, run_memory
from tests.unit.wire.samples import sample_messages

__all__ = ["TARGETS", "Target"]

_MAX_WORDS = 1000
_KEY = bytes(range(32))
_HERE = Identity("ab" * 16, Role.AGENT, "here", 11)
_THERE = Identity("ab" * 16, Role.CONTROLLER, "there", 22, 3)
_PROLOGUE_BYTES = HELLO_BYTES - (ANSWER_BYTES - PUBLIC_BYTES - TAG_BYTES) - PUBLIC_BYTES - TAG_BYTES


@dataclass(frozen=True)
class Target:
    """One parser of bytes.

    Args:
        seeds: initial inputs.
        run: feeds one input to the parser.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    run: Callable[[bytes], str]

    def check(self, data: bytes) -> str:
        """Feed one input to the parser; return the outcome."""
        outcome = self.run(data)
        assert len(outcome) <= _MAX_WORDS, "an error as long as its cause"
        return outcome


def _frames() -> list[bytes]:
    shapes: list[tuple[bytes, list[bytes]]] = [(b"", []), (b"body", []), (b"", [b"buffer"]), (b"b", [b"", b"x" * 100])]
    frames = [Frame(kind, 7, 2**64 - 1, body, buffers) for kind in Kind for body, buffers in shapes[:2]]
    frames += [Frame(Kind.CALL, 1, 2, body, buffers) for body, buffers in shapes]
    return [b"".join((pack_head(frame), frame.body, *frame.buffers)) for frame in frames]


def _run_head(data: bytes) -> str:
    """Parse a header, and the same bytes by `parse_frame`."""
    outcome = _parse_head(data)
    parsed: tuple[Frame, int] | None = None
    problem = ""
    try:
        parsed = parse_frame(data)
    except FrameError as error:
        problem = str(error)
    assert problem in ("", outcome)
    if parsed is not None:
        head = parse_head(data, MAX_FRAME_BYTES)
        frame, end = parsed
        assert (frame.kind, frame.dest, frame.reply) == (head.kind, head.dest, head.reply)
        assert frame.body == data[head.size : head.size + head.body_bytes]
        assert tuple(len(buffer) for buffer in frame.buffers) == head.buffer_bytes
        assert b"".join((frame.body, *frame.buffers)) == data[head.size : end]
    return outcome


def _parse_head(data: bytes) -> str:
    try:
        head = parse_head(data, MAX_FRAME_BYTES)
    except FrameError as error:
        return str(error)
    assert head.size == HEAD_BYTES + 8 * len(head.buffer_bytes) <= len(data)
    assert len(head.buffer_bytes) <= MAX_BUFFERS and head.body_bytes <= MAX_BODY_BYTES
    assert head.body_bytes + sum(head.buffer_bytes) <= MAX_FRAME_BYTES
    return f"{head.kind.name} with {len(head.buffer_bytes)} buffers"


def _controls() -> list[bytes]:
    return [encode(message) for message in sample_messages()]


def _run_control(data: bytes) -> str:
    try:
        message = decode(data)
    except FrameError as error:
        problem = error.problem
        return problem if len(problem) > _MAX_WORDS else re.split("['\".:]", problem)[0]
    again = encode(message)
    assert encode(decode(again)) == again
    return type(message).__name__


def _offers() -> list[bytes]:
    asks = [Capabilities(), Capabilities("boot 0 pid 1 2", True, True, ""), Capabilities(problem="no libucp")]
    return [
        encode_offer(offer)
        for capabilities in asks
        for offer in (Offer(capabilities), Offer(capabilities, bytes(200), bytes(16)))
    ]


def _run_offer(data: bytes) -> str:
    try:
        offer = decode_offer(data)
    except FrameError as error:
        return str(error)
    assert decode_offer(encode_offer(offer)) == offer
    return f"address {bool(offer.address)}, token {len(offer.token)}"


def _greetings() -> list[bytes]:
    return [Dialing(_THERE, _KEY, wanted, "").hello for wanted in (0, _HERE.incarnation, 99)]


def _run_greeting(data: bytes) -> str:
    """Parse a hello as the listening side; any process may send one."""
    accepting = Accepting(_HERE, _KEY, "there")
    try:
        peer, wanted = accepting.read(data)
        accepting.answer()
    except AuthenticationError as error:
        return str(error)
    return f"{peer.role.name} looks for {wanted}"


def _cards() -> list[bytes]:
    """Prologues and cards in plain text."""
    found = []
    for greeting in _greetings():
        prologue, noise = greeting[:_PROLOGUE_BYTES], greeting[_PROLOGUE_BYTES:]
        found.append(prologue + Responder(prologue, _KEY).read(noise))
    return found


def _run_card(data: bytes) -> str:
    """Handle a hello that is sealed with the key around nonsense."""
    prologue, card = data[:_PROLOGUE_BYTES], data[_PROLOGUE_BYTES:]
    return _run_greeting(prologue + Initiator(prologue, _KEY).first(card))


def _run_answer(data: bytes) -> str:
    """Parse an answer as the dialling side; the first input byte says whether the rest is sealed with the key."""
    dialing = Dialing(_THERE, _KEY, 0, "here")
    answer = data[1:]
    if data[:1] == b"\1":
        noise = Responder(dialing.hello[:_PROLOGUE_BYTES], _KEY)
        noise.read(dialing.hello[_PROLOGUE_BYTES:])
        answer = noise.answer(data[1:])[0]
    try:
        peer, _ = dialing.finish(answer)
        check_versions(peer.python, peer.package, peer.host)
    except VersionMismatch as error:
        return f"{error.what} differs"
    except AuthenticationError as error:
        return error.problem
    return peer.role.name


def _answers() -> list[bytes]:
    raw = Accepting(_HERE, _KEY, "there")
    raw.read(_greetings()[0])
    return [b"\0" + raw.answer()[0], *(b"\1" + card[_PROLOGUE_BYTES:] for card in _cards())]


def _run_address(data: bytes) -> str:
    try:
        host, port = parse_address(data.decode(errors="surrogateescape"))
    except PeerLost:
        return "none"
    assert 0 < port < 65536
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.inet_pton(family, host)  # `connect` would resolve a host name
    return family.name


def _addresses() -> list[bytes]:
    return [b"tcp://127.0.0.1:80", b"tcp://[::1]:65535", b"tcp://[fe80::1%eth0]:1", b"relay+tcp://10.0.0.1:1"]


_RECORD, _CHUNK, _ZEROS = 1, 2, 3


def _piece(how: int, content: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("<BI", how, len(content) if size is None else size) + content


def _records() -> list[bytes]:
    """See `ends.wire_of`."""
    frames = _frames()
    sizes = [100_000, 0, 20, 70_000]
    bulk = pack_head(Frame(Kind.CALL, 1, 2, b"body", [bytes(size) for size in sizes])) + b"body"
    large = pack_head(Frame(Kind.PUT, 1, 2, bytes(5000), [bytes(900_000)]))
    offer = encode_offer(Offer(Capabilities("here", False, True)))
    return [
        *(_piece(_RECORD, frame) for frame in frames),
        _piece(_RECORD, b"".join(frames[4:9])),
        b"".join([_piece(_RECORD, bulk), *(_piece(_ZEROS, size=size) for size in sizes), _piece(_RECORD, frames[4])]),
        _piece(_RECORD, frames[4] + bulk) + _piece(_ZEROS, size=100_000) + _piece(_CHUNK, bytes(20)),
        _piece(_RECORD, large) + _piece(_ZEROS, size=5000) + _piece(_ZEROS, size=2**19) + _piece(_ZEROS, size=375_712),
        _piece(_RECORD, pack_head(Frame(Kind.OFFER, body=offer)) + offer + frames[4]),
        _piece(_RECORD, pack_head(Frame(Kind.SWITCH))) + _piece(_RECORD, frames[4]),
        _piece(0, b"\x14\0\0\0" + bytes(20)),
        _piece(0, b"\xff" * 8),
    ]


def _inboxes() -> list[bytes]:
    """See `ends.run_inbox`."""
    return [bytes([step]) + data for data in _records() for step in (0, 6)]


def _shared() -> list[bytes]:
    """Frames in shared memory, and questions, see `run_shared`."""
    sent: list[Frame] = []
    shared = SharedFrames(sent.append, keeps=False)
    shared.ask(lambda: None)
    shared.on_frame(Frame(Kind.SHARED, ShareStep.OPENED, 1))
    buffers = copy_to_share([memoryview(bytearray(100))[1:], b"short"])
    sent.append(shared.wrap(Frame(Kind.CAST, 1, 2, b"body", buffers)))
    shared.close()
    return [bytes([frame.dest]) + bytes(frame.body) for frame in sent]


def _parts() -> list[bytes]:
    """Parts of one frame and of two, see `run_parts`."""
    frame = Frame(Kind.CALL, 1, 2, b"body", [b"x" * 100, b"", bytearray(9)])
    pieces = [
        struct.pack("<BBH", number, part.reply, len(data)) + data
        for number in (1, 2)
        for part in cut(frame, number, 1 << 20)
        for data in [b"".join((part.body, *part.buffers))]
    ]
    return [b"".join(pieces[:3]), b"".join(pieces[::3] + pieces[1::3] + pieces[2::3])]


def _lanes() -> list[bytes]:
    """See `ends.run_lane`."""

    def message(how: int, sequence: int, content: bytes = b"") -> bytes:
        return struct.pack("<BQI", how, sequence, len(content)) + content

    frames = _frames()
    apart = bytes(70_000)
    front = pack_head(Frame(Kind.CALL, 1, 2, b"body", [b"near", apart, b""])) + b"bodynear"
    return [
        *(message(2, 0) + message(0, 0, frame) for frame in frames),
        message(2, 0) + message(0, 0, frames[4] + frames[5]) + message(0, 1, frames[6]),
        message(0, 1, frames[6]) + message(2, 0) + message(0, 0, frames[4]),
        message(2, 0) + message(1, 1, apart[:40_000]) + message(1, 0, front) + message(0, 2, frames[4]),
        message(2, 0) + message(3, 0),
    ]


def _relayed() -> list[bytes]:
    """See `ends.run_relay`: u8 for the end, then the bytes from the pipe."""

    def record(what: int, stream: int, payload: bytes) -> bytes:
        return struct.pack("<BII", what, stream, len(payload)) + payload

    address = b"tcp://127.0.0.1:80"
    far = [
        record(1, 1, address) + record(2, 1, b"data") + record(3, 1, struct.pack("<I", 4)) + record(4, 1, b"over"),
        record(1, 1, b"tcp://nowhere") + record(5, 0, b""),
        record(1, 1, address) + record(1, 1, address) + record(2, 1, bytes(5000)),
    ]
    near = [
        b"Loading modules\n" + b"monarch-hpc relay 1\n" + record(2, 1, b"answer") + record(3, 1, struct.pack("<I", 9)),
        b"monarch-hpc relay 1\n" + record(4, 1, b"refused"),
    ]
    return [b"\1" + data for data in far] + [b"\0" + data for data in near]


def _run_records(data: bytes) -> str:
    frames, error = run_records(data)
    assert isinstance(error, TransportError)
    return f"{name_of(frames)}, then {str(error).partition('it left')[0]}"


TARGETS = [
    Target("head", _frames, _run_head),
    Target("control", _controls, _run_control),
    Target("offer", _offers, _run_offer),
    Target("greeting", _greetings, _run_greeting),
    Target("card", _cards, _run_card),
    Target("answer", _answers, _run_answer),
    Target("address", _addresses, _run_address),
    Target("inbox", _inboxes, run_inbox),
    Target("parts", _parts, run_parts),
    Target("shared", _shared, run_shared),
    Target("records", _records, _run_records),
    Target("lane", _lanes, run_lane),
    Target("memory", memory_inputs, run_memory),
    Target("relay", _relayed, run_relay),
]
