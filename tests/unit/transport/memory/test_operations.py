"""Gets and puts by frames: cut into pieces, a window of them in flight, and each answer checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import cast

import pytest

from monarch_hpc.core.errors import MemoryAccessError, PeerLost
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.framed.lists import ListedPiece, ListProblem, pack_problem, parse_list, plan_batches
from monarch_hpc.transport.memory.framed.operation import ListOperation
from monarch_hpc.transport.memory.framed.operations import PIECE_BYTES, WINDOW_BYTES, Operations
from monarch_hpc.transport.memory.key import ID_BYTES, Key, parse_span
from monarch_hpc.transport.memory.moves import Move, Moves
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, FrameHead, Kind, pack_head, parse_head

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

    def undisturbed(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def run(self) -> None:
        while self.due:
            self.due.pop(0)()


class Bench:
    """The operations of one channel, and the frames that they sent."""

    def __init__(self, max_frame_bytes: int = 2**30, list_pieces: int = 1024) -> None:
        self.engine = Driver()
        self.sent: list[Frame] = []
        self.lost: PeerLost | KeyboardInterrupt | None = None
        self.operations = Operations(cast(Engine, self.engine), self.send, "there", max_frame_bytes, list_pieces)

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


def test_a_transfer_that_is_interrupted_while_it_begins_takes_nothing_from_later_ones() -> None:
    bench = Bench()
    bench.engine.driving = False
    other = bench.operations.get(KEY, 0, bytearray(PIECE_BYTES))
    interrupt = bench.lost = KeyboardInterrupt()
    into = bytearray(2 * PIECE_BYTES)
    for _ in range(2 * WINDOW_BYTES // PIECE_BYTES):
        with pytest.raises(KeyboardInterrupt) as raised:
            bench.operations.get(KEY, 0, into)
        assert raised.value is interrupt
    bench.lost = None
    last = bench.operations.get(KEY, 0, bytearray(WINDOW_BYTES - PIECE_BYTES))
    assert len(bench.sent) == WINDOW_BYTES // PIECE_BYTES
    late = Frame(Kind.DATA, 2, 0, b"", [b"1" * PIECE_BYTES])  # of one that had been sent after all
    bench.operations.on_data(late)
    while bench.sent:
        bench.answer(data=bytes(PIECE_BYTES))
    assert other.done and last.done and other.error is last.error is None
    assert not any(into), "it is the caller's again"


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


def listed(num: int, size: int, *, write: bool = False, into: bytearray | None = None) -> Moves:
    memory = memoryview(bytearray(num * size) if into is None else into)
    return Moves([Move(ID, 3 * size * at, memory[size * at : size * (at + 1)], write) for at in range(num)])


def pieces_of(frame: Frame) -> list[ListedPiece]:
    return parse_list(frame.body)


def test_a_frame_of_a_list_carries_many_pieces_and_its_data_is_put_where_it_belongs() -> None:
    bench = Bench(list_pieces=1024)
    into = bytearray(3000 * 8)
    moves = listed(3000, 8, into=into)
    for _submission in range(2):
        transfer = bench.operations.move_all(moves, [KEY])
        bench.engine.run()
        assert [frame.kind for frame in bench.sent] == [Kind.GET_LIST] * 3
        assert [len(pieces_of(frame)) for frame in bench.sent] == [1024, 1024, 952]
        data = os.urandom(len(into))
        for first, last in ((0, 8192), (8192, 16384), (16384, 24000)):
            assert not transfer.done
            bench.answer(data=data[first:last])
        assert transfer.done and transfer.error is None and into == data


def test_only_what_a_channel_copies_is_sent_by_the_thread_that_asks() -> None:
    engine = cast(Engine, Driver())
    for size, write, direct in ((1000, True, True), (100_000, True, False), (100_000, False, True)):
        (batch,) = plan_batches([(0, Move(ID, 0, memoryview(bytearray(size)), write))], 10, 2**20)
        assert ListOperation(1, [batch], lambda _place, why: why, Transfer(engine, "")).direct is direct


def test_a_written_list_takes_its_data_along() -> None:
    bench = Bench()
    data = bytearray(os.urandom(50 * 1000))
    transfer = bench.operations.move_all(listed(50, 1000, write=True, into=data), [KEY])
    bench.engine.run()
    (frame,) = bench.sent
    assert frame.kind is Kind.PUT_LIST and bytes(frame.buffers[0]) == data
    bench.answer()
    assert transfer.done and transfer.error is None


def test_large_pieces_of_a_list_travel_by_themselves() -> None:
    bench = Bench()
    views = [memoryview(bytearray(size)) for size in (8, 2**20, 9)]
    transfer = bench.operations.move_all(Moves([Move(ID, 0, view, False) for view in views]), [KEY])
    bench.engine.run()
    assert [frame.kind for frame in bench.sent] == [Kind.GET_LIST, Kind.GET]
    bench.answer(data=b"x" * 17)
    bench.engine.run()
    assert not transfer.done
    bench.answer(data=b"y" * 2**20)
    bench.engine.run()
    assert transfer.done and [view[0] for view in views] == [ord("x"), ord("y"), ord("x")]


def test_the_frames_of_lists_share_the_window() -> None:
    bench = Bench()
    moves = listed(2 * WINDOW_BYTES // 2**16, 2**16)
    transfer = bench.operations.move_all(moves, [KEY])
    bench.engine.run()
    in_flight = sum(piece.num_bytes for frame in bench.sent for piece in pieces_of(frame))
    assert WINDOW_BYTES <= in_flight < WINDOW_BYTES + PIECE_BYTES
    assert all(sum(piece.num_bytes for piece in pieces_of(frame)) <= PIECE_BYTES for frame in bench.sent)
    while bench.sent:
        bench.answer(data=bytes(sum(piece.num_bytes for piece in pieces_of(bench.sent[0]))))
    assert transfer.done and transfer.error is None


def test_an_error_names_the_piece() -> None:
    bench = Bench(list_pieces=4)
    transfer = bench.operations.move_all(listed(10, 8), [KEY])
    bench.engine.run()
    bench.answer(data=bytes(32))
    frame = bench.sent.pop(0)
    why = pack_problem(ListProblem(2, "it has closed it"))
    bench.operations.on_data(Frame(Kind.DATA, frame.reply, frame.dest, why, []))
    ended(transfer, "piece 6 of 10: it has closed it")
    outside = Moves([Move(ID, at, memoryview(bytearray(4)), False) for at in (0, KEY.nbytes - 3)])
    ended(bench.operations.move_all(outside, [KEY]), "piece 1 of 2: bytes .* of a memory of")


@pytest.mark.parametrize("data", [None, b"abc", b"x" * 81], ids=["none", "short", "long"])
def test_an_answer_of_another_size_ends_a_list_and_writes_nothing(data: bytes | None) -> None:
    bench = Bench()
    into = bytearray(80)
    transfer = bench.operations.move_all(listed(10, 8, into=into), [KEY])
    bench.engine.run()
    bench.answer(data=data)
    ended(transfer, "does not match the request")
    assert into == bytes(80)


def test_nothing_is_written_after_a_list_was_stopped() -> None:
    bench = Bench(list_pieces=4)
    into = bytearray(80)
    transfer = bench.operations.move_all(listed(10, 8, into=into), [KEY])
    bench.engine.run()
    bench.answer(data=b"x" * 32)
    assert transfer.stop(MemoryAccessError("there", "enough")) and transfer.done
    while bench.sent:
        bench.answer(data=b"y" * 32)
    ended(transfer, "enough")
    assert into == b"x" * 32 + bytes(48)
    assert bench.operations._in_flight_bytes == 0


def arriving(frame: Frame, num_bytes: int) -> FrameHead:
    """The head of the answer to the request *frame*."""
    return parse_head(pack_head(Frame(Kind.DATA, frame.reply, frame.dest, b"", [bytes(num_bytes)])), 2**30)


def test_pieces_arrive_in_their_place_several_at_once() -> None:
    bench = Bench(max_frame_bytes=4096 + 4)
    into = bytearray(8)
    transfer = bench.operations.get(KEY, 0, into)
    frames, withdrawn = list(bench.sent), list[int]()
    landed = [bench.operations.land(arriving(frame, 4), lambda: withdrawn.append(1)) for frame in frames]
    again = bench.operations.land(arriving(frames[0], 4), lambda: withdrawn.append(2))
    assert again is None, "it is answered twice"
    for frame, views, data in zip(frames, landed, (b"abcd", b"efgh"), strict=True):
        assert views is not None
        views[0][:] = data
        bench.operations.on_data(Frame(Kind.DATA, frame.reply, frame.dest, b"", views))
    assert transfer.done and transfer.error is None and into == b"abcdefgh" and not withdrawn


def test_pieces_that_arrive_are_taken_back_before_a_transfer_ends() -> None:
    bench = Bench(max_frame_bytes=4096 + 4)
    into = bytearray(8)
    transfer = bench.operations.get(KEY, 0, into)
    taken: list[bool] = []
    frames = list(bench.sent)
    landed = [bench.operations.land(arriving(frame, 4), lambda: taken.append(transfer.done)) for frame in frames]
    assert transfer.stop(MemoryAccessError("there", "enough"))
    assert taken == [False, False]
    for frame, views in zip(frames, landed, strict=True):
        assert views is not None
        views[0][:] = b"late"
        bench.operations.on_data(Frame(Kind.DATA, frame.reply, frame.dest, b"", views))
    assert into == bytes(8)
    assert bench.operations.land(arriving(frames[0], 4), lambda: taken.append(True)) is None
