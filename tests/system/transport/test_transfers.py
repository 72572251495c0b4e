"""Transfers of all sizes with memory that was opened: whole, and nothing beside them, on every fabric."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import threading
from collections.abc import Callable

import pytest

from monarch_hpc.core.errors import MemoryAccessError, PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.connect import introduction
from monarch_hpc.transport.memory.moves import Move, Moves
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.ucx.lane import UcxLane
from tests.system.support.parties import PATIENCE_S, UCX, Party, join, parties

__all__ = ["parties"]

FABRICS = ["cma", "ucx-shm", "ucx-tcp", "tcp", "relay"]
Pair = tuple[Party, Party, FrameChannel]

_MIB = 2**20
_GUARD = 64
"""Bytes before and behind each destination, which must not change."""


@pytest.fixture(params=FABRICS)
def pair(parties: Callable[..., Party], request: pytest.FixtureRequest) -> Pair:
    """A party with memory, one without, and the latter's channel."""
    return join(parties, request.param)


def guarded(num_bytes: int) -> tuple[bytearray, memoryview]:
    """Poisoned memory, and the *num_bytes* in its middle."""
    memory = bytearray(b"\xa5") * (num_bytes + 2 * _GUARD)
    return memory, memoryview(memory)[_GUARD : _GUARD + num_bytes]


def whole(memory: bytearray) -> bool:
    """Whether nothing was written beside the destination."""
    return memory[:_GUARD] == memory[-_GUARD:] == b"\xa5" * _GUARD


def same(one: memoryview, other: memoryview) -> bool:
    """Whether two views have the same bytes; views themselves are compared element by element."""
    steps = range(0, len(one), _MIB)
    return all(bytes(one[at : at + _MIB]) == bytes(other[at : at + _MIB]) for at in steps)


def check_both_ways(pair: Pair, num_bytes: int) -> None:
    owner, _, channel = pair
    held, lent = guarded(num_bytes + 8)
    lent[:] = os.urandom(num_bytes + 8)
    identifier = owner.node.register(lent).parts.id
    got, into = guarded(num_bytes)
    channel.memory.move(identifier, 3, into, write=False).wait(PATIENCE_S)
    arrived = same(into, lent[3 : 3 + num_bytes]) and whole(got)
    assert arrived
    data, first, last = memoryview(os.urandom(num_bytes)), bytes(lent[:5]), bytes(lent[5 + num_bytes :])
    channel.memory.move(identifier, 5, data, write=True).wait(PATIENCE_S)
    arrived = same(lent[5 : 5 + num_bytes], data) and whole(held)
    assert arrived and lent[:5] == first and lent[5 + num_bytes :] == last


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 64 * 1024 + 1, 4 * _MIB + 3])
def test_bytes_at_odd_offsets_arrive_whole_and_nothing_beside_them(pair: Pair, num_bytes: int) -> None:
    check_both_ways(pair, num_bytes)


@pytest.mark.slow  # a GiB and its copies
@pytest.mark.skipif(
    "LARGE" not in os.environ, reason="set LARGE=1 for transfers of 64 MiB and of a GiB: 5 GiB of memory"
)
@pytest.mark.parametrize("num_bytes", [64 * _MIB + 1, 1024 * _MIB])
def test_large_ones_do_too(pair: Pair, num_bytes: int) -> None:
    check_both_ways(pair, num_bytes)


def test_memory_that_lies_apart_is_read_range_by_range_and_not_in_between(pair: Pair) -> None:
    owner, _, channel = pair
    held = [bytearray(os.urandom(size)) for size in (1, 4095, 64 * 1024 + 1, 4 * _MIB + 3)]
    lent = Scattered([(address_of(one), len(one)) for one in held], held)
    memory = owner.node.register(lent, writable=False)
    identifier, starts = memory.parts.id, lent.places.starts
    guards = [guarded(len(one)) for one in held]
    moves = [Move(identifier, start, into, False) for start, (_memory, into) in zip(starts, guards, strict=True)]
    for _submission in range(2):
        channel.memory.move_all(Moves(moves)).wait(PATIENCE_S)
        assert all(into == one and whole(around) for one, (around, into) in zip(held, guards, strict=True))
        for _around, into in guards:
            into[:] = bytes(len(into))
    part = bytearray(100)
    channel.memory.move(identifier, starts[2] + 7, part, write=False).wait(PATIENCE_S)
    assert part == held[2][7:107]
    across = channel.memory.move(identifier, starts[1] + 4000, bytearray(200), write=False)
    with pytest.raises(MemoryAccessError, match="not all of one array"):
        across.wait(PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="read only"):
        channel.memory.move(identifier, starts[1], b"x", write=True).wait(PATIENCE_S)
    local = bytearray(4095)
    owner.node.own_memory.move(identifier, starts[1], local, write=False).wait(PATIENCE_S)
    assert local == held[1]


def test_lists_of_many_pieces_arrive_whole_and_nothing_beside_them(pair: Pair) -> None:
    owner, _, channel = pair
    held = [bytearray(os.urandom(40_000)) for _ in range(50)]
    before = [bytes(one) for one in held]
    names = [owner.node.register(memoryview(one)).parts.id for one in held]
    sizes = [1, 511, 4096, 0, 36_000]
    read, written = [], []
    for number in range(3000):
        name, size = names[number % 50], sizes[number % 5]
        around, into = guarded(size)
        read.append((around, into, number % 50, number))
        if number < 50:  # to the end of each memory, which nothing else touches
            written.append(Move(name, 39_900, memoryview(os.urandom(100)), True))
    moves = Moves([Move(names[place], at, into, False) for _around, into, place, at in read] + written)
    for _submission in range(2):
        channel.memory.move_all(moves).wait(PATIENCE_S)
        assert all(whole(around) and into == before[place][at : at + len(into)] for around, into, place, at in read)
        assert held == [old[:39_900] + bytes(move.buffer) for old, move in zip(before, written, strict=True)]
        for _around, into, _place, _at in read:
            into[:] = bytes(len(into))
        for one in held:
            one[39_900:] = bytes(100)
    outside = Moves([*moves.moves[:7], Move(names[1], 39_999, memoryview(bytearray(2)), False)])
    with pytest.raises(MemoryAccessError, match=r"piece 7 of 8: bytes 39999 to 40001 of a memory of 40000"):
        channel.memory.move_all(outside).wait(PATIENCE_S)
    revoked: list[bool] = []
    owner.node.own_memory.grants.revoke(names[2], "dropped by a[0]", lambda: revoked.append(True))
    wait_until("the end of a memory", lambda: revoked)
    with pytest.raises(MemoryAccessError, match=r"piece 2 of 3050: dropped by a\[0\]"):
        channel.memory.move_all(moves).wait(PATIENCE_S)


def test_ctrl_c_ends_a_wait_and_not_the_transfer(pair: Pair) -> None:
    owner, _, channel = pair
    gate, blocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        gate.wait(PATIENCE_S)

    memory = owner.node.register(bytearray(b"x" * 100_000))
    owner.engine.call_soon(block)  # so that the memory is not opened yet
    assert blocked.wait(PATIENCE_S)
    into = bytearray(100_000)
    transfer = channel.memory.move(memory.parts.id, 0, into, write=False)
    press = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 it may come before the wait
        press.start()
        transfer.wait(PATIENCE_S)
    press.join()
    gate.set()
    transfer.wait(PATIENCE_S)
    assert into == b"x" * 100_000


@pytest.mark.parametrize("num_bytes", [1, 16 * _MIB])
def test_the_first_use_of_memory_asks_for_a_lane(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    monkeypatch.setattr(introduction, "FIRST_S", 3600.0)
    owner, asker = (parties(role=role, ucx=UCX["ucx-shm"]) for role in (Role.PROC, Role.CONTROLLER))
    memory = owner.node.register(bytearray(num_bytes))
    channel = asker.node.connect(owner.node.listen(["127.0.0.1"]))
    channel.memory.move(memory.parts.id, 0, bytearray(num_bytes), write=False).wait(PATIENCE_S)
    if num_bytes == 1:  # it need not wait for the lane
        asker.until(lambda: bool(channel.why))
    assert channel.fabric == "ucx/shm"


class Cable:
    """A connection to *port* of this host that can be cut: bytes are passed on until then."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: list[socket.socket] = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._ends[0].getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._ends[0].accept()[0]
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += near, far
                for one, other in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(one, other)))
                    self._threads[-1].start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_MIB):
                other.sendall(data)

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for end in self._ends:
            end.close()


# UCX ended the process here: see `UcxLane.connect` for its own answers to reads, and `mc_lane_drain` for its tcp.
@pytest.mark.parametrize("fabric", ["cma", "ucx-shm", "ucx-tcp", "tcp"])
def test_a_cut_link_ends_all_transfers_and_writes_nothing_beside_them(
    parties: Callable[..., Party], fabric: str
) -> None:
    options = {"cma": fabric == "cma", "ucx": UCX.get(fabric, "")}
    owner, asker = parties(**options), parties(role=Role.CONTROLLER, **options)
    (address,) = owner.node.listen(["127.0.0.1"])
    before, port, after = re.split(r":(\d+)", address, maxsplit=1)
    cable = Cable(int(port))
    channel = asker.node.connect([f"{before}:{cable.port}{after}"])
    asker.until(lambda: not options["ucx"] or bool(channel.why))
    source = bytearray(os.urandom(4 * _MIB))
    memory = owner.node.register(source)
    held = [guarded(len(source)) for _ in range(64)]
    begun = [channel.memory.move(memory.parts.id, 0, into, write=False) for _around, into in held]
    begun += [channel.memory.move(memory.parts.id, 0, source, write=True) for _ in range(8)]
    asker.until(lambda: begun[0].done)
    cable.cut()
    asker.until(lambda: all(transfer.done for transfer in begun))
    errors = [transfer.error for transfer in begun if transfer.error is not None]
    assert all(isinstance(error, PeerLost) for error in errors)
    assert all(whole(around) for around, _into in held)
    assert all(bytes(into) == source for (_around, into), one in zip(held, begun, strict=False) if one.error is None)
    late = channel.memory.move(memory.parts.id, 0, bytearray(1), write=False)
    num_frames = set()
    for _ in range(3):
        with pytest.raises(PeerLost) as raised:
            late.wait(PATIENCE_S)
        num_frames.add(len(raised.traceback))
    assert len(num_frames) == 1
    revoked = threading.Event()
    owner.node.own_memory.grants.revoke(memory.parts.id, "dropped", revoked.set)
    assert revoked.wait(PATIENCE_S)


def test_a_thousand_are_under_way_in_both_directions(pair: Pair) -> None:
    owner, _, channel = pair
    dice = random.Random(1)
    num, place_bytes = 500, 8192
    source, target, data = bytearray(os.urandom(num * place_bytes)), bytearray(num * place_bytes), bytearray()
    data += os.urandom(num * place_bytes)
    read, written = owner.node.register(source, writable=False), owner.node.register(target)
    begun: list[Transfer] = []
    reads: list[tuple[int, memoryview, bytearray]] = []
    for at in range(0, num * place_bytes, place_bytes):
        memory, into = guarded(min(dice.choice([0, 1, 5000, 64 * 1024 + 1]), num * place_bytes - at))
        reads.append((at, into, memory))
        begun.append(channel.memory.move(read.parts.id, at, into, write=False))
        part = memoryview(data)[at : at + place_bytes]
        begun.append(channel.memory.move(written.parts.id, at, part, write=True))
    wait_until("all transfers", lambda: all(transfer.done for transfer in begun), PATIENCE_S)
    assert not [transfer.error for transfer in begun if transfer.error]
    assert all(whole(memory) and into == source[at : at + len(into)] for at, into, memory in reads)
    assert target == data


@pytest.mark.parametrize("fabric", ["ucx-shm", "ucx-tcp", "tcp", "relay"])
def test_a_read_that_is_stopped_in_the_middle_writes_nothing_later(parties: Callable[..., Party], fabric: str) -> None:
    owner, asker, channel = join(parties, fabric)
    memory = owner.node.register(bytearray(64 * _MIB))
    channel.memory.move(memory.parts.id, 0, bytearray(1), write=False).wait(PATIENCE_S)
    around, into = guarded(memory.nbytes)
    then: list[bytes] = []
    transfer = channel.memory.move(memory.parts.id, 0, into, write=False)

    def stop_it_amid() -> None:
        if into[0]:
            asker.engine.call_later(0.0, stop_it_amid)
        elif transfer.stop(MemoryAccessError("there", "given up")):
            then.append(bytes(into))

    asker.engine.call_soon(stop_it_amid)
    with pytest.raises(MemoryAccessError, match="given up"):
        transfer.wait(PATIENCE_S)
    # Its answers come after those that were under way.
    channel.memory.move(memory.parts.id, 0, bytearray(32 * _MIB), write=False).wait(PATIENCE_S)
    assert whole(around) and into == then[0] and into[-1] == 0xA5


def test_what_is_read_over_sockets_arrives_in_its_place(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    landed: list[object] = []
    land = UcxLane.land

    def note(lane: UcxLane, sequence: int, num_bytes: int) -> object:
        landed.append(land(lane, sequence, num_bytes))
        return landed[-1]

    monkeypatch.setattr(UcxLane, "land", note)
    owner, _, channel = join(parties, "ucx-tcp")
    source = bytearray(os.urandom(16 * _MIB))
    around, into = guarded(len(source))
    channel.memory.move(owner.node.register(source).parts.id, 0, into, write=False).wait(PATIENCE_S)
    assert into == source and whole(around)
    assert len([one for one in landed if one is not None]) == 4, "pieces of 4 MiB"
