"""Memory of another process: used by its key, or by its identifier, for which the key is fetched at the first use."""

from __future__ import annotations

import itertools
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import FrameError, MemoryAccessError, TransportError
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.carriers import Carriers
from monarch_hpc.transport.memory.cma.cross_memory import CrossMemory
from monarch_hpc.transport.memory.device.devices import Devices
from monarch_hpc.transport.memory.framed.operations import Operations
from monarch_hpc.transport.memory.key import ID_BYTES, Key, num_bytes_of
from monarch_hpc.transport.memory.mapping import map_memory
from monarch_hpc.transport.memory.moves import Mover, Moves
from monarch_hpc.transport.memory.peer import Answered, RemoteMemory, Start
from monarch_hpc.transport.memory.requests import (
    Change,
    MemoryStep,
    OpenedMemory,
    make_request,
    pack_owner,
    parse_request,
)
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, FrameHead

__all__ = ["RemoteMemories"]

_KEEP = 4096
"""Number of revoked memories whose reason is kept."""

_LARGE_BYTES = 16 * 2**20
"""From this size on a transfer waits for the lane: frames take longer than UCX to start."""

_LANE_WAIT_S = 1.0
"""Longest wait for it: half a second where UCX must load CUDA, and as much for a busy machine."""


class RemoteMemories:
    """The memories of the process at the other end of a channel; see `transport.memory.peer.MemoryPeer`.

    Args:
        send: sends a frame to the peer.
        broken: returns why the channel has ended; None while it is open.
        where: the peer, for errors.
        cross_memory: what copies memory of processes of this host.
        devices: what carries memory of GPUs.
        want_lane: asks for a lane now, if one can be had; on the driver.
    """

    def __init__(
        self,
        engine: Engine,
        send: Callable[[Frame], object],
        broken: Callable[[], object],
        where: str,
        limits: TransportConfig,
        cross_memory: CrossMemory,
        devices: Devices,
        want_lane: Callable[[], None],
    ) -> None:
        self._want_lane = want_lane
        self._until_lane: list[Start] | None = []  # of large transfers; None once there is a lane, or will be none
        self._engine = engine
        self._send = send
        self._where = where
        self._operations = Operations(engine, send, where, limits.max_frame_bytes, limits.list_pieces)
        self._carriers = Carriers(engine, self._operations, broken, where, devices)
        self._cross_memory = cross_memory
        self._lock = allocate_lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, Answered] = {}
        self._remotes: dict[bytes, RemoteMemory] = {}
        self._revoked: Recent[bytes, str] = Recent(_KEEP)
        self._error: TransportError | None = None

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Read memory by its key; see `transport.api.FrameChannel.get`."""
        return self._by_key(key, offset, into, write=False)

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write memory by its key; see `transport.api.FrameChannel.put`."""
        return self._by_key(key, offset, data, write=True)

    def _by_key(self, packed: bytes, offset: int, buffer: object, *, write: bool) -> Transfer:
        try:
            key = Key.parse(packed)
        except MemoryAccessError as error:
            return self._refuse(error)
        return self._carriers.by_key(key, offset, buffer, write=write)

    def _refuse(self, error: TransportError) -> Transfer:
        transfer = Transfer(self._engine, "")
        transfer.finish(error)
        return transfer

    def move(self, identifier: bytes, offset: int, buffer: object, *, write: bool) -> Transfer:
        """See `transport.memory.peer.MemoryPeer.move`."""
        with self._lock:
            problem = self._problem(identifier)
            remote = self._remotes.setdefault(identifier, RemoteMemory()) if problem is None else RemoteMemory()
            key = remote.key
            waits = key is None or (
                self._until_lane is not None and not remote.path and num_bytes_of(buffer) >= _LARGE_BYTES
            )
            if problem is None and not waits:
                remote.num_moving += 1
        if problem is not None:
            return self._refuse(problem)
        if key is None or waits:
            return self._move_later(identifier, remote, offset, buffer, write=write)
        try:
            transfer = self._carriers.move(remote, key, offset, buffer, write=write)
        except BaseException:
            self._moved(identifier, remote)
            raise
        if transfer.done:
            self._moved(identifier, remote)
        else:
            transfer.on_done(lambda _transfer: self._moved(identifier, remote))
        return transfer

    def move_all(self, moves: Moves) -> Transfer:
        """See `transport.memory.peer.MemoryPeer.move_all`."""
        with self._lock:
            problem = self._problem_of(moves)
            found = [self._remotes.get(identifier) for identifier in moves.identifiers]
            remotes = [(remote, remote.key) for remote in found if remote is not None and remote.key is not None]
            opened = len(remotes) == len(found)
            if opened and problem is None:
                for remote, _key in remotes:
                    remote.num_moving += 1
        if problem is not None:
            return self._refuse(problem)
        if not opened:
            return self._open_and_move(moves)

        def moved(_transfer: Transfer | None = None) -> None:
            for identifier, (remote, _key) in zip(moves.identifiers, remotes, strict=True):
                self._moved(identifier, remote)

        try:
            transfer = self._carriers.move_all(moves, remotes)
        except BaseException:
            moved()
            raise
        if transfer.done:
            moved()
        else:
            transfer.on_done(moved)
        return transfer

    def _open_and_move(self, moves: Moves) -> Transfer:
        outer = Transfer(self._engine, f"{moves}, {self._where}")
        outer.stop_by(outer.finish)
        left = set(moves.identifiers)

        def opened(identifier: bytes, error: TransportError | None) -> None:
            left.discard(identifier)
            if outer.done:  # it was stopped, or has failed
                return
            if isinstance(error, MemoryAccessError):
                error = MemoryAccessError(error.where, moves.name(moves.place_of(identifier), error.problem))
            if error is not None:
                outer.finish(error)
            elif not left:
                self._follow(outer, lambda: self.move_all(moves))

        for identifier in moves.identifiers:
            with self._lock:
                remote = self._remotes.setdefault(identifier, RemoteMemory())
            self._when_open(identifier, remote, partial(opened, identifier), for_large=False)
        return outer

    def path(self, identifier: bytes) -> str:
        """See `transport.memory.peer.MemoryPeer.path`."""
        remote = self._remotes.get(identifier)
        return "" if remote is None else remote.path

    def open(self, identifier: bytes, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.open`."""
        with self._lock:
            problem = self._problem(identifier)
            remote = self._remotes.setdefault(identifier, RemoteMemory()) if problem is None else RemoteMemory()
        if problem is not None:
            self._engine.call_soon(lambda: answered(problem))
        else:
            self._when_open(identifier, remote, lambda error: answered(error or remote.packed), for_large=False)

    def _move_later(
        self, identifier: bytes, remote: RemoteMemory, offset: int, buffer: object, *, write: bool
    ) -> Transfer:
        outer = Transfer(self._engine, f"{'put' if write else 'get'} at {offset}, {self._where}")
        outer.stop_by(outer.finish)

        def start(error: TransportError | None) -> None:
            if outer.done:  # it was stopped
                return
            if error is not None:
                outer.finish(error)
            else:
                self._follow(outer, lambda: self.move(identifier, offset, buffer, write=write))

        self._when_open(identifier, remote, start, for_large=True)
        return outer

    def _follow(self, outer: Transfer, begin: Callable[[], Transfer]) -> None:
        """Let *outer* end as the transfer that *begin* starts does."""
        try:
            inner = begin()
        except Exception as failure:  # noqa: BLE001 such as a buffer that has become read-only; a transfer always ends
            outer.finish(MemoryAccessError(self._where, str(failure)))
        else:
            outer.stop_by(lambda error: outer.finish(error) if inner.stop(error) else None)
            inner.on_done(lambda _inner: outer.finish(inner.error))

    def _when_open(self, identifier: bytes, remote: RemoteMemory, start: Start, *, for_large: bool) -> None:
        """Call *start* on the driver once the memory's key has been fetched, or with the reason why it cannot be.

        Args:
            for_large: wait for the lane, too, if the key has been fetched already.
        """
        with self._lock:
            opens = self._error is None and remote.key is None and not remote.waiting
            if self._error is None and remote.key is None:
                remote.waiting.append(start)
            elif for_large and self._error is None and self._until_lane is not None:
                self._until_lane.append(start)
                self._engine.call_later(_LANE_WAIT_S, partial(self.settle, None))
            else:
                self._engine.call_soon(lambda: start(self._error))
        if not opens:
            return
        self._engine.call_soon(self._want_lane)
        take = partial(self._on_open, identifier, remote)
        try:
            self._request(MemoryStep.OPEN, identifier, self._cross_memory.place, take)
        except BaseException:  # such as Ctrl-C: transfers of other threads wait for the key meanwhile
            failed = MemoryAccessError(self._where, "the request for its key was interrupted")
            self._engine.call_soon(lambda: take(failed))
            raise

    def drop(self, identifier: bytes, who: str, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.drop`."""
        self._request(MemoryStep.DROP, identifier, who.encode(), answered)

    def change(self, identifier: bytes, change: Change, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.change`."""
        self._request(MemoryStep.CHANGE, identifier, change.pack(), answered)

    def ask_path(self, identifier: bytes, owner: int, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.ask_path`."""
        self._request(MemoryStep.ASK_PATH, identifier, pack_owner(owner), answered)

    def _request(self, step: MemoryStep, identifier: bytes, rest: bytes, answered: Answered) -> None:
        number = next(self._numbers)
        self._requests[number] = answered
        try:
            if (problem := self._problem(identifier)) is not None:
                raise problem
            self._send(make_request(step, number, identifier, rest))
        except TransportError as failure:
            error = failure
            if self._requests.pop(number, None) is not None:
                self._engine.call_soon(lambda: answered(error))

    def _problem_of(self, moves: Moves) -> TransportError | None:
        """Why a list cannot begin, with the first piece at fault; None if it can."""
        for identifier in moves.identifiers:
            problem = self._problem(identifier)
            if isinstance(problem, MemoryAccessError):
                return MemoryAccessError(self._where, moves.name(moves.place_of(identifier), problem.problem))
            if problem is not None:
                return problem
        return None

    def _problem(self, identifier: bytes) -> TransportError | None:
        why = self._revoked.get(identifier)
        if len(identifier) != ID_BYTES:  # user code has made or changed it
            why = f"an identifier of a memory has {ID_BYTES} bytes, this one {len(identifier)}"
        return self._error or (None if why is None else MemoryAccessError(self._where, why))

    # ---- on the driver ----

    def settle(self, lane: Mover | None) -> None:
        """Move memory on *lane* from here on; None if there is none, as far as large transfers are to wait for it."""
        with self._lock:
            self._carriers.lane = lane or self._carriers.lane
            waiting, self._until_lane = self._until_lane or [], None
        for start in waiting:
            start(None)

    def land(self, head: FrameHead, withdraw: Callable[[], object] | None = None) -> list[memoryview] | None:
        """Targets for the buffers of an arriving DATA frame; see `Operations.land`."""
        return self._operations.land(head, withdraw)

    def on_data(self, frame: Frame) -> None:
        """Handle the answer to a piece of a transfer."""
        self._operations.on_data(frame)

    def on_answer(self, frame: Frame) -> None:
        """Handle the owner's answer to a request, or its request to stop using a memory; never fails the channel."""
        try:
            step, identifier, rest = parse_request(frame)
        except FrameError as error:
            step, rest = MemoryStep.REFUSED, str(error).encode()
        problem = MemoryAccessError(self._where, rest.decode(errors="replace"))
        if step is MemoryStep.REVOKE:
            self._on_revoke(identifier, problem.problem)
        elif (answered := self._requests.pop(frame.reply, None)) is not None:
            answered(problem if step is MemoryStep.REFUSED else rest)

    def _on_open(self, identifier: bytes, remote: RemoteMemory, answer: bytes | TransportError) -> None:
        error = answer if isinstance(answer, TransportError) else None
        opened = attachment = mapping = key = None
        if isinstance(answer, bytes):
            try:
                opened = OpenedMemory.parse(answer)
                key = Key.parse(opened.key)
                mapping = map_memory(self._engine, self._cross_memory.copiers, key, self._where)
                attachment = self._cross_memory.attach(opened, self._where, self._carriers.attachment)
            except (FrameError, MemoryAccessError) as problem:  # an odd answer, or an odd key
                error, opened = MemoryAccessError(self._where, f"its owner's answer: {problem}"), None
        with self._lock:
            if opened is not None:
                if attachment is not None:
                    self._carriers.attachment = attachment
                    remote.address = opened.address
                remote.mapping = mapping
                remote.packed, remote.key = opened.key, key
            elif self._remotes.get(identifier) is remote:
                del self._remotes[identifier]
            waiting, remote.waiting = remote.waiting, []
        for start in waiting:
            start(error)

    def _on_revoke(self, identifier: bytes, why: str) -> None:
        with self._lock:
            self._revoked[identifier] = why
            remote = self._remotes.pop(identifier, None)
            busy = remote is not None and remote.num_moving > 0
            if remote is not None:
                remote.revoked = True
                if not busy:
                    remote.opened = None  # before its owner may free it
        if not busy:
            self._release(identifier)

    def _moved(self, identifier: bytes, remote: RemoteMemory) -> None:
        with self._lock:
            remote.num_moving -= 1
            free = remote.revoked and not remote.num_moving
            if free:
                remote.opened = None
        if free:
            self._release(identifier)

    def _release(self, identifier: bytes) -> None:
        if self._error is None:
            try:
                self._send(make_request(MemoryStep.RELEASED, 0, identifier))
            except TransportError:  # the owner is gone, and its memory with it
                pass

    def fail_all(self, error: TransportError) -> None:
        """Fail all requests and transfers: the channel has ended."""
        with self._lock:
            self._error = self._error or error
        if self._carriers.attachment is not None:
            self._carriers.attachment.close(error)
        self._operations.fail_all(error)
        with self._lock:
            waiting = [start for remote in self._remotes.values() for start in remote.waiting]
            self._remotes.clear()
            waiting += self._until_lane or []
            self._until_lane = None
        requests, self._requests = self._requests, {}
        for answered in requests.values():
            answered(error)
        for start in waiting:
            start(error)
