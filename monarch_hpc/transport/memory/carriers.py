"""Chooses what carries the transfers with memory of one process: copies of its own, the lane, or frames."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.cma.cross_memory import AttachedMemory
from monarch_hpc.transport.memory.device.devices import Devices
from monarch_hpc.transport.memory.device.handle import DeviceHandle
from monarch_hpc.transport.memory.framed.operations import Operations
from monarch_hpc.transport.memory.key import Key, device_span, host_view, num_bytes_of
from monarch_hpc.transport.memory.moves import Mover, Moves, join_transfers
from monarch_hpc.transport.memory.peer import RemoteMemory
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["Carriers"]


class _Way(enum.Enum):
    """The way of a memory's pieces in a list."""

    ALONE = enum.auto()  # each by itself: memory that is mapped, or a device's
    ATTACHED = enum.auto()
    LANE = enum.auto()
    FRAMES = enum.auto()


Remote = tuple[RemoteMemory, Key]
"""A memory whose key has been fetched."""


class Carriers:
    """What carries transfers with one process.

    Args:
        operations: carries them by frames.
        broken: returns why the channel has ended; None while it is open.
        where: that process, for errors.
        devices: carries what is memory of a GPU.

    Attributes:
        lane: moves memory by itself; None if there is no lane.
        attachment: copies the memory of that process by this one; None if it cannot.
    """

    def __init__(
        self, engine: Engine, operations: Operations, broken: Callable[[], object], where: str, devices: Devices
    ) -> None:
        self._engine = engine
        self._where = where
        self._devices = devices
        self._broken = broken
        self.operations = operations
        self.lane: Mover | None = None
        self.attachment: AttachedMemory | None = None

    def by_key(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer:
        """Start a transfer on the lane; by frames where there is none, or where those are to carry it."""
        lane = self.lane
        if lane is not None and self._broken() is None:
            carried = lane.move(key, offset, buffer, write=write)
            if carried is not None:
                return carried
        return (self.operations.put if write else self.operations.get)(key, offset, buffer)

    def move(self, remote: RemoteMemory, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer:
        """Start a transfer as a copy by this process where that is possible; else as `by_key`."""
        if key.on_device or device_span(buffer) is not None:
            return self._move_device(remote, key, offset, buffer, write=write)
        if remote.mapping is not None:
            return remote.mapping.move(offset, buffer, write=write)
        if remote.address and self.attachment is not None:
            view = host_view(buffer, writable=not write)
            return self.attachment.move(key, remote.address, offset, view, write=write)
        return self.by_key(key, offset, buffer, write=write)

    def _move_device(self, remote: RemoteMemory, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer:
        """Start a transfer from or to memory of a GPU, here or there."""
        devices, here = self._devices, device_span(buffer) is not None
        handle = DeviceHandle.parse(key.handle) if key.handle else None
        near = bool(remote.mapping or remote.address) if handle is None else handle.near
        opened = devices.open(handle, buffer) if handle is not None else None
        if opened is not None and handle is not None:
            remote.opened = opened  # kept open for the next transfer: to open it takes longer than most
            remote.device_path = "cuda_ipc"
            return devices.copy(opened, key, handle.offset, buffer, self._where, offset=offset, write=write)
        if not near and devices.direct:
            remote.device_path = ""
            lane = self.lane
            carried = (
                None if lane is None or self._broken() is not None else lane.move(key, offset, buffer, write=write)
            )
            if carried is not None:
                return carried
        if not near or (here and key.on_device):  # a copy between a GPU and its host has no other way
            why = "its owner's process cannot share it" if near else "there is no GPUDirect between the two hosts"
            problem = devices.problem(why)
            if problem:
                refused = Transfer(self._engine, "")
                refused.finish(MemoryAccessError(self._where, problem))
                return refused
        if not here:  # its owner copies it, frame by frame
            remote.device_path = "staged"
            return (self.operations.put if write else self.operations.get)(key, offset, buffer)

        def move(at: int, view: memoryview) -> Transfer:
            if key.on_device:
                return (self.operations.put if write else self.operations.get)(key, offset + at, view)
            return self.move(remote, key, offset + at, view, write=write)

        error = key.error(self._where, offset, num_bytes_of(buffer), write=write)
        if error is not None:
            refused = Transfer(self._engine, "")
            refused.finish(error)
            return refused
        remote.device_path = "staged"
        return devices.stage(move, buffer, self._where, offset=offset, write=write)

    def move_all(self, moves: Moves, remotes: Sequence[Remote]) -> Transfer:
        """Start *moves* in as few steps as possible; *remotes* are of `Moves.identifiers`."""
        ways = [self._way_of(moves, *remote) for remote in remotes]
        if len(set(ways)) < 2:
            return self._move_by(ways[0] if ways else _Way.FRAMES, moves, remotes)
        found = dict(zip(moves.identifiers, remotes, strict=True))
        way_of = dict(zip(moves.identifiers, ways, strict=True))
        transfers = [
            self._move_by(way, part, [found[identifier] for identifier in part.identifiers])
            for way, part in moves.parted(way_of).items()
        ]
        return join_transfers(self._engine, str(moves), transfers)

    def _way_of(self, moves: Moves, remote: RemoteMemory, key: Key) -> _Way:
        if not moves.on_host or remote.mapping is not None or key.on_device:
            return _Way.ALONE
        if remote.address and self.attachment is not None:
            return _Way.ATTACHED
        return _Way.FRAMES if key.refused or self.lane is None or self._broken() is not None else _Way.LANE

    def _move_by(self, way: _Way, moves: Moves, remotes: Sequence[Remote]) -> Transfer:
        keys = [key for _remote, key in remotes]
        if way is _Way.ALONE:
            found = dict(zip(moves.identifiers, remotes, strict=True))
            each = [self.move(*found[move[0]], *move[1:3], write=move[3]) for move in moves.moves]
            return join_transfers(self._engine, str(moves), each)
        if way is _Way.ATTACHED and self.attachment is not None:
            places = [(key, remote.address) for remote, key in remotes]
            return self.attachment.move_all(moves, places)
        carried = self.lane.move_all(moves, keys) if way is _Way.LANE and self.lane is not None else None
        return carried or self.operations.move_all(moves, keys)
