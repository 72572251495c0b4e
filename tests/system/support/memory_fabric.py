"""A fabric that carries frames through the memory of this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from monarch_hpc.core.errors import MemoryAccessError, PeerLost, TransportError
from monarch_hpc.transport.api import Capabilities, FabricKind, LaneListener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key, host_view
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, pack_frame, parse_frame
from tests.system.support.parties import PATIENCE_S

__all__ = ["MemoryFabric", "MemoryLane"]

ADDRESS = b"this process"


class MemoryFabric:
    """Carries frames as bytes between two engines of this process.

    Attributes:
        problem: why it does not start.
        unreachable: whether no lane of it can be connected.
        connecting: what its lanes call once they are connected; None where they are at once.
        moved_bytes: what gets and puts have moved.
    """

    lanes: ClassVar[dict[bytes, MemoryLane]] = {}
    memories: ClassVar[dict[bytes, Memory]] = {}

    def __init__(self, engine: Engine, problem: str = "", unreachable: bool = False, waits: bool = False) -> None:
        self.engine = engine
        self.connecting: list[Callable[[], None]] | None = [] if waits else None
        self.problem = problem
        self.unreachable = unreachable
        self.moved_bytes = 0
        self.opened: list[MemoryLane] = []
        self.closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(rdma=True)

    @property
    def address(self) -> bytes:
        return ADDRESS

    def start(self, started: Callable[[str], None]) -> None:
        self.engine.call_soon(partial(started, self.problem))

    def open_lane(self, listener: LaneListener, peer: str, send_queue_bytes: int) -> MemoryLane:
        lane = MemoryLane(self, listener, peer, send_queue_bytes)
        self.lanes[lane.token] = lane
        self.opened.append(lane)
        return lane

    def register(self, memory: Memory) -> None:
        handle = os.urandom(8)
        self.memories[handle] = memory
        memory.attach(1, handle, partial(self.memories.__delitem__, handle))

    def close(self) -> None:
        self.closed = True


class MemoryLane:
    """One direction each way, through a queue that the receiver's engine empties."""

    def __init__(self, fabric: MemoryFabric, listener: LaneListener, peer: str, send_queue_bytes: int) -> None:
        self.token = os.urandom(16)
        self.transports = ("queue",)
        self.received_s = 0.0
        self.kind: FabricKind | None = None
        self.num_frames = 0
        self.answers: list[int] = []
        self.ended: tuple[TransportError, bool] | None = None
        self.listener = listener
        self._fabric = fabric
        self._peer = peer
        self._send_queue_bytes = send_queue_bytes
        self._inbox: deque[bytes] = deque()
        self._opened = False
        self._other: MemoryLane | None = None

    @property
    def pending_bytes(self) -> int:
        return 0 if self._other is None else sum(map(len, self._other._inbox))

    def connect(self, kind: FabricKind, address: bytes, token: bytes, connected: Callable[[], None]) -> None:
        if self._fabric.unreachable:
            raise PeerLost(self._peer, "no route through memory")
        assert address == ADDRESS
        self._other = self._fabric.lanes[token]
        self.kind = kind
        if self._fabric.connecting is None:
            connected()
        else:
            self._fabric.connecting.append(connected)

    def send(self, frame: Frame) -> None:
        if self.ended is not None:
            raise self.ended[0]
        other = self._other
        assert other is not None
        other._inbox.append(pack_frame(frame))
        other._fabric.engine.call_soon(other._deliver)
        if not self._fabric.engine.driving and self.pending_bytes > self._send_queue_bytes:
            self._fabric.engine.wait(lambda: self.ended is not None or not self.pending_bytes, PATIENCE_S)

    def move_all(self, _moves: Moves, _keys: Sequence[Key]) -> Transfer | None:
        return None

    def move(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        if not key.rkey:
            return None
        view = host_view(buffer, writable=not write)
        transfer = Transfer(self._fabric.engine, "a copy")
        memory = self._fabric.memories.get(key.rkey)
        try:
            if memory is None or memory.view is None:
                raise MemoryAccessError(self._peer, "closed")
            key.check(self._peer, offset, view.nbytes, write=write)
        except MemoryAccessError as error:
            transfer.finish(error)
            return transfer
        place = memory.view[offset : offset + view.nbytes]
        if write:
            place[:] = view
        else:
            view[:] = place
        self._fabric.moved_bytes += view.nbytes
        transfer.finish()
        return transfer

    def open(self) -> None:
        self._opened = True
        self._deliver()

    def _deliver(self) -> None:
        while self._opened and self._inbox and self.ended is None:
            data = self._inbox.popleft()
            parsed = parse_frame(data, 0)
            assert parsed is not None and parsed[1] == len(data)
            self.received_s = self._fabric.engine.clock()
            self.num_frames += 1
            self.listener.on_lane_frame(parsed[0])
        if self._other is not None:
            self._other._fabric.engine.wake_waiters()

    def answered(self, asked_us: int) -> None:
        self.answers.append(asked_us)
        self._fabric.engine.wake_waiters()

    def close(self, error: TransportError, *, peer_died: bool) -> None:
        assert self.ended is None, "closed twice"
        self.ended = (error, peer_died)
        del self._fabric.lanes[self.token]
