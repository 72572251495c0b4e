"""A process with memory and one that uses it, between which fuzzed frames about memory arrive."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from monarch_hpc.config.load import load
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.framed.lists import ListedPiece, pack_list
from monarch_hpc.transport.memory.key import ID_BYTES, pack_span
from monarch_hpc.transport.memory.own import OwnMemories
from monarch_hpc.transport.memory.remote import RemoteMemories
from monarch_hpc.transport.memory.requests import Change, MemoryStep, OpenedMemory, make_request, of_owner, pack_owner
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["memory_inputs", "run_memory"]

_HEAD = struct.Struct("<BBBBH")  # kind, dest, reply, number of buffers, bytes of the body, which also fill each buffer
_KINDS = (Kind.MEMORY, Kind.GET, Kind.PUT, Kind.DATA, Kind.GET_LIST, Kind.PUT_LIST)
_MOVES = frozenset((Kind.GET, Kind.PUT, Kind.GET_LIST, Kind.PUT_LIST))
_NAME = b"m" * ID_BYTES
_ANSWERED = frozenset((MemoryStep.OPEN, MemoryStep.DROP, MemoryStep.CHANGE, MemoryStep.ASK_PATH))
_PATIENCE_S = 10.0
_LIMITS = replace(load().config.transport, max_frame_bytes=2**20)


class _Answers:
    """The channel of the process that asks: it keeps what the other sends."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def send(self, frame: Frame) -> None:
        """Keep a frame."""
        self.sent.append(frame)


def _frames(data: bytes) -> Iterator[Frame]:
    at = 0
    while at + _HEAD.size <= len(data):
        kind, dest, reply, num, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        body = data[at : at + size]
        at += len(body)
        yield Frame(_KINDS[kind % len(_KINDS)], dest, reply, body, [bytearray(body) for _ in range(num % 3)])


def _render(frame: Frame) -> bytes:
    return _HEAD.pack(_KINDS.index(frame.kind), frame.dest, frame.reply, len(frame.buffers), len(frame.body)) + bytes(
        frame.body
    )


def memory_inputs() -> list[bytes]:
    """Requests about the memory, and answers to those that `run_memory` has sent."""
    span = pack_span(_NAME, 8, ID_BYTES + 16)
    pieces = pack_list([ListedPiece(_NAME, 0, 40), ListedPiece(_NAME, 36, 24)])
    requests = [
        make_request(MemoryStep.OPEN, 1, _NAME),
        make_request(MemoryStep.CHANGE, 2, _NAME, Change(8, bytes(8)).pack()),
        Frame(Kind.GET, 0, 3, span),
        Frame(Kind.PUT, 0, 4, span, [span]),
        Frame(Kind.GET_LIST, 0, 6, pieces),
        Frame(Kind.PUT_LIST, 0, 7, pieces, [pieces]),
        make_request(MemoryStep.DROP, 5, _NAME, b"me"),
        make_request(MemoryStep.ASK_PATH, 8, _NAME, pack_owner(7)),
        make_request(MemoryStep.RELEASED, 0, _NAME),
    ]
    answers = [
        make_request(MemoryStep.OPENED, 1, _NAME, OpenedMemory(bytes(ID_BYTES + 17)).pack()),
        make_request(MemoryStep.REFUSED, 2, _NAME, b"no"),
        make_request(MemoryStep.REVOKE, 0, _NAME, b"over"),
        make_request(MemoryStep.CHANGED, 2, _NAME, bytes(8)),
        make_request(MemoryStep.PATH, 2, _NAME, b"tcp"),
        Frame(Kind.DATA, 1, 0, b"", [b""]),
    ]
    return [*map(_render, requests), *map(_render, answers), b"".join(map(_render, requests + answers))]


def run_memory(data: bytes) -> str:
    """Handle frames: none raises, and each request is answered, at most once, or when the memory is free."""
    engine = Engine()
    try:
        own, answers = OwnMemories(engine), _Answers()
        memory = own.memories.register(bytearray(64))
        own.memories._memories[_NAME] = own.memories._memories.pop(memory.parts.id)
        asked: list[Frame] = []
        remote = RemoteMemories(
            engine,
            asked.append,
            lambda: None,
            "another process",
            _LIMITS,
            own.cross_memory,
            own.devices,
            lambda: None,
        )
        outcomes: list[object] = []
        remote.open(_NAME, outcomes.append)
        remote.change(_NAME, Change(0, bytes(8)), outcomes.append)
        frames = list(_frames(data))
        engine.call_soon(lambda: _handle(frames, own, remote, answers))
        escaped: list[BaseException] = []
        engine.on_fault = lambda _what, error: escaped.append(error)
        engine.wait(lambda: not engine._soon, _PATIENCE_S)
        for error in escaped:
            raise error
        _check(frames, answers.sent)
        told = sorted(type(outcome).__name__ for outcome in outcomes)
        return " ".join([*map(_outcome_of, answers.sent), "then", *told])
    finally:
        engine.close()


def _outcome_of(frame: Frame) -> str:
    if frame.kind is Kind.DATA:
        return "failed" if frame.body else "done"
    return MemoryStep(frame.dest).name


def _handle(frames: list[Frame], own: OwnMemories, remote: RemoteMemories, answers: _Answers) -> None:
    for frame in frames:
        if frame.kind is Kind.DATA:
            remote.on_data(frame)
        elif of_owner(frame):
            remote.on_answer(frame)
        else:
            own.serve(cast(FrameChannel, answers), frame)


def _check(frames: list[Frame], sent: list[Frame]) -> None:
    data = Counter(frame.dest for frame in sent if frame.kind is Kind.DATA)
    assert data == Counter(frame.reply for frame in frames if frame.kind in _MOVES)
    asked = Counter(frame.reply for frame in frames if frame.kind is Kind.MEMORY and frame.dest in _ANSWERED)
    told = Counter(frame.reply for frame in sent if frame.kind is Kind.MEMORY and frame.dest != MemoryStep.REVOKE)
    dropped = {frame.reply for frame in frames if frame.kind is Kind.MEMORY and frame.dest == MemoryStep.DROP}
    for number, times in asked.items():
        assert told[number] >= times or number in dropped, "a request without an answer"
