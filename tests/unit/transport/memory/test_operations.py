"""Gets and puts by frames: cut into pieces, a window of them in flight, and each answer checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from monarch_hpc.core.errors import MemoryAccessError, PeerLost
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import ID_BYTES, Key, parse_span
from monarch_hpc.transport.memory.operations import PIECE_BYTES, WINDOW_BYTES, Operations, Transfer
from monarch_hpc.wire.frames import Frame, Kind

ID = bytes(range(ID_BYTES))
KEY = Key(ID, 8 * WINDOW_BYTES, writable=True)


class Driver:
    """An engine whose driver is the test."""

    driving = True

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def wake_waiters(self) -> None:
        """Nobody waits."""

    def run(self) -> None:
        while self.due:
            self.due.pop(0)()


class Bench:
    """The operations of one channel, and the frames that they sent."""

    def __init__(self, max_frame_bytes: int = 2**30) -> None:
        self.engine = Driver()
        self.sent: list[Frame] = []
        self.lost: PeerLost | None = None
        self.operations = Operations(cast(Engine, self.engine), self.send, "there", max_frame_bytes)

    def send(self, frame: Frame) -> None:
        if self.lost is not None:
            raise self.lost
        self.sent.append(frame)

    def spans(self) -> list[tuple[int, int]]:
        """Offset and length of each piece that was sent since the last call."""
        self.engine.run()
        spans = [parse_span(frame.body) for frame in self.sent]
        assert all(identifier == ID for identifier, _, _ in spans)
        return [(offset, nbytes) for _, offset, nbytes in spans]

    def answer(self, *, data: bytes | None = None, problem: str = "") -> None:
        """Answer the first piece that was sent."""
        frame = self.sent.pop(0)
        buffers = [] if data is None else [data]
        self.operations.on_data(Frame(Kind.DATA, frame.reply, frame.dest, problem.encode(), buffers))


def ended(transfer: Transfer, match: str) -> None:
    assert transfer.done and transfer.error is not None
    with pytest.raises(type(transfer.error), match=match):
        raise transfer.error


def test_a_put_goes_in_pieces_and_is_done_when_all_have_arrived() -> None:
    bench = Bench()
    data = bytes(PIECE_BYTES) + b"rest"
    transfer = bench.operations.put(KEY, 100, data)
    assert bench.spans() == [(100, PIECE_BYTES), (100 + PIECE_BYTES, 4)]
    assert b"".join(bytes(frame.buffers[0]) for frame in bench.sent) == data
    bench.answer()
    assert not transfer.done
    bench.answer()
    assert transfer.done and transfer.error is None


def test_a_get_puts_each_piece_where_it_belongs() -> None:
    bench = Bench(max_frame_bytes=4096 + 4)
    into = bytearray(10)
    transfer = bench.operations.get(KEY, 0, into)
    assert bench.spans() == [(0, 4), (4, 4), (8, 2)]
    bench.sent.reverse()  # answers may come in any order
    for data in (b"ij", b"efgh", b"abcd"):
        bench.answer(data=data)
    assert transfer.done and bytes(into) == b"abcdefghij"


def test_a_window_is_in_flight_and_operations_take_turns() -> None:
    bench = Bench()
    num = WINDOW_BYTES // PIECE_BYTES
    first = bench.operations.get(KEY, 0, bytearray(2 * WINDOW_BYTES))
    second = bench.operations.get(KEY, 0, bytearray(PIECE_BYTES))
    assert len(bench.spans()) == num
    for _ in range(2):
        bench.answer(data=bytes(PIECE_BYTES))
    assert len(bench.spans()) == num
    assert {frame.reply for frame in bench.sent} == {1, 2}, "the second did not wait for the first"
    while bench.sent:
        bench.answer(data=bytes(PIECE_BYTES))
    assert first.done and second.done


def test_an_empty_transfer_asks_the_owner_too() -> None:
    bench = Bench()
    transfer = bench.operations.get(KEY, 5, bytearray())
    assert bench.spans() == [(5, 0)] and not transfer.done
    bench.answer(data=b"")
    assert transfer.done and transfer.error is None


def test_what_the_key_forbids_is_not_sent() -> None:
    bench = Bench()
    readable = Key(ID, 10, writable=False)
    ended(bench.operations.put(readable, 0, b"x"), "read only")
    ended(bench.operations.get(readable, 5, bytearray(6)), "bytes 5 to 11 of a memory of 10 bytes")
    assert bench.spans() == []


def test_a_refusal_ends_the_transfer_and_frees_the_window() -> None:
    bench = Bench()
    transfer = bench.operations.put(KEY, 0, bytes(2 * WINDOW_BYTES))
    num = len(bench.spans())
    other = bench.operations.put(KEY, 0, b"x" * 100_000)
    assert len(bench.spans()) == num, "the window is full"
    bench.answer(problem="it has no such memory")
    ended(transfer, "it has no such memory")
    assert isinstance(transfer.error, MemoryAccessError)
    assert bench.spans()[-1] == (0, 100_000), "the window is free for others"
    while bench.sent:
        bench.answer()  # later answers to the first are ignored
    assert other.done and other.error is None


@pytest.mark.parametrize("data", [None, b"abc", b"abcdef"], ids=["none", "short", "long"])
def test_an_answer_of_another_size_ends_the_transfer(data: bytes | None) -> None:
    bench = Bench()
    into = bytearray(5)
    transfer = bench.operations.get(KEY, 0, into)
    bench.spans()
    bench.answer(data=data)
    ended(transfer, "does not match the request")
    assert into == bytes(5)


def test_the_end_of_the_channel_ends_all_transfers_and_later_ones() -> None:
    bench = Bench()
    running = [bench.operations.get(KEY, 0, bytearray(2 * WINDOW_BYTES)) for _ in range(2)]
    bench.spans()
    bench.operations.fail_all(PeerLost("there", "it died"))
    for transfer in [*running, bench.operations.get(KEY, 0, bytearray(1))]:
        ended(transfer, "it died")


def test_a_send_that_fails_ends_all_transfers() -> None:
    bench = Bench()
    bench.lost = PeerLost("there", "reset")
    ended(bench.operations.get(KEY, 0, bytearray(1)), "reset")


def test_callbacks_run_once_on_the_driver_even_if_the_transfer_is_done() -> None:
    bench = Bench()
    done: list[Transfer] = []
    transfer = bench.operations.get(KEY, 0, bytearray(2))
    transfer.on_done(done.append)
    bench.spans()
    bench.answer(data=b"ab")
    assert done == []
    bench.engine.run()
    transfer.on_done(done.append)
    bench.engine.run()
    transfer.finish(PeerLost("there", "too late"))
    bench.engine.run()
    assert done == [transfer, transfer] and transfer.error is None
