"""Registers memory that other processes read and write, and serves it from the engine, without running user code.

Where a fabric reaches the memory, it serves it itself; see `transport.memory.framed.operations` for the other side.
"""

from __future__ import annotations

import contextlib
import os
from _thread import allocate_lock

from monarch_hpc.core.errors import FrameError, MemoryAccessError, TransportError
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.storage.segment import find
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.device.copies import copy_between, place_of
from monarch_hpc.transport.memory.device.handle import handle_of
from monarch_hpc.transport.memory.framed.lists import ListedPiece, ListProblem, pack_problem, parse_list, scatter
from monarch_hpc.transport.memory.framed.operations import PIECE_BYTES
from monarch_hpc.transport.memory.key import ID_BYTES, Key, device_span, host_view, parse_span
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.transport.memory.requests import WORD_BYTES, Change
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind, RefusedBuffers, sizes_of

__all__ = ["Memories"]

_LISTS = frozenset((Kind.GET_LIST, Kind.PUT_LIST))
_HERE = "this process"  # the owner of the memory, in errors


class Memories:
    """The registered memories of a process.

    `register`, `get` and `put` are for any thread, the rest is for the driver of the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._memories: dict[bytes, Memory] = {}
        self._copying = allocate_lock()  # its holder accesses a memory of this process itself
        # Target of the PUT frame that is arriving on each channel: the memory's identifier and the view.
        self._landings: dict[FrameChannel, tuple[bytes, list[memoryview]]] = {}

    def register(self, buffer: object, *, writable: bool = True, allocation: tuple[int, int] | None = None) -> Memory:
        """Let every process that has the key read *buffer*, and write to it if *writable*.

        Args:
            buffer: an object with the buffer protocol or `__cuda_array_interface__`, contiguous; or `Scattered` memory.
            allocation: addresses of the memory that *buffer* is a part of, and keeps; see `Memory.allocation`.

        Raises:
            TypeError: *buffer* has neither.
            ValueError: *buffer* is not contiguous, or *writable* was asked for and it is read-only.
        """
        identifier = os.urandom(ID_BYTES)
        if isinstance(buffer, Scattered):
            places = buffer.places
            key = Key(identifier, places.num_bytes, writable, places=places)
            memory = self._memories[identifier] = Memory(self._forget, buffer, None, places.addresses[0], key)
            return memory
        span = device_span(buffer)
        if span is None:
            view = host_view(buffer, writable=writable)
            address = address_of(view)
            found = find(address, view.nbytes, fixed=False) if view.nbytes else None
            key = Key(identifier, view.nbytes, writable, span=b"" if found is None else found.pack())
            memory = Memory(self._forget, buffer, view, address, key, allocation)
        else:
            address, nbytes, may_write = span
            if writable and not may_write:
                raise ValueError(f"the device's memory cannot be written to: {type(buffer).__name__}")
            key = Key(identifier, nbytes, writable, on_device=True, handle=handle_of(address).pack())
            memory = Memory(self._forget, buffer, None, address, key)
        self._memories[identifier] = memory
        return memory

    def _forget(self, memory: Memory) -> None:
        if not self._engine.driving:
            # The driver may be writing to it at this moment.
            self._engine.call_soon(lambda: self._forget(memory))
            self._engine.wait(lambda: memory.parts.id not in self._memories, None)
            return
        with self._copying:
            self._memories.pop(memory.parts.id, None)
        for identifier, places in self._landings.values():
            if identifier == memory.parts.id:
                places[0] = memoryview(bytearray(len(places[0])))  # data that still arrives is discarded
        self._engine.wake_waiters()

    def find(self, identifier: bytes) -> Memory | None:
        """The memory with *identifier*; None if there is none, or it was closed."""
        return self._memories.get(identifier)

    def change(self, identifier: bytes, change: Change) -> tuple[bytes, str]:
        """Change a number in a memory; return what it was, or why it cannot be changed. On the driver.

        Atomic among all changes, not among other writes.
        """
        problem = self._problem(identifier, change.offset, WORD_BYTES, write=True)
        if not problem and self._memories[identifier].parts.on_device:
            problem = "a number in memory of a GPU"
        if not problem and change.offset % WORD_BYTES:
            problem = f"a number at {change.offset}, which is no multiple of {WORD_BYTES}"
        if problem:
            return b"", problem
        with self._copying:
            return change.apply(self._memories[identifier].part(change.offset, WORD_BYTES)), ""

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Read memory of this process itself, with the checks and errors of `transport.api.FrameChannel.get`."""
        return self._copy(key, offset, into, write=False)

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write memory of this process itself, with the checks and errors of `transport.api.FrameChannel.put`."""
        return self._copy(key, offset, data, write=True)

    def _copy(self, key: bytes, offset: int, buffer: object, *, write: bool) -> Transfer:
        address, nbytes, on_device = place_of(buffer, writable=not write)
        transfer = Transfer(self._engine, f"{'put' if write else 'get'} of {nbytes} bytes at {offset}, {_HERE}")
        try:
            parts = Key.parse(key)
            parts.check(_HERE, offset, nbytes, write=write)
            # In pieces, as on a channel: between two of them the memory may be closed.
            for at in range(0, max(nbytes, 1), PIECE_BYTES):
                size = min(PIECE_BYTES, nbytes - at)
                with self._copying:
                    problem = self._problem(parts.id, offset + at, size, write=write)
                    if problem:
                        raise MemoryAccessError(_HERE, problem)
                    memory = self._memories[parts.id]
                    if on_device or memory.parts.on_device:
                        there, here = memory.address_of(offset + at), address + at
                        into, data = (there, here) if write else (here, there)
                        copy_between(into, data, size, address if on_device else there)
                    else:
                        view = host_view(buffer, writable=not write)[at : at + size]
                        place = memory.part(offset + at, size)
                        if write:
                            place[:] = view
                        else:
                            view[:] = place
        except MemoryAccessError as error:
            transfer.finish(error)
        except OSError as error:
            transfer.finish(MemoryAccessError(_HERE, str(error)))
        else:
            transfer.finish()
        return transfer

    def land(self, channel: FrameChannel, head: FrameHead, body: Buffer) -> list[memoryview] | None:
        """Targets for the data of an arriving PUT frame; see `transport.secure.records.Landing`."""
        if head.kind is not Kind.PUT or len(head.buffer_bytes) != 1:
            return None
        try:
            identifier, offset, nbytes = parse_span(body)
        except FrameError:  # answered when all of it has arrived
            return None
        memory = self._memories.get(identifier)
        if memory is None or head.buffer_bytes[0] != nbytes or self._problem(identifier, offset, nbytes, write=True):
            return None
        if memory.parts.on_device:
            return None
        places = [memory.part(offset, nbytes)]
        self._landings[channel] = (identifier, places)
        return places

    def serve(self, channel: FrameChannel, frame: Frame) -> None:
        """Answer a GET or PUT frame, or one of a list, also if it cannot be parsed: the channel serves others, too."""
        if frame.kind in _LISTS:
            self._serve_list(channel, frame)
            return
        landed = self._landings.pop(channel, None) if frame.kind is Kind.PUT else None
        buffers: tuple[memoryview, ...] = ()
        try:
            identifier, offset, nbytes = parse_span(frame.body)
            problem = self._problem(identifier, offset, nbytes, write=frame.kind is Kind.PUT)
        except FrameError as error:
            identifier, offset, nbytes, problem = b"", 0, 0, str(error)
        if frame.kind is Kind.PUT and list(sizes_of(frame.buffers)) != [nbytes]:
            problem = problem or f"a put of {nbytes} bytes came with data of another length"
        elif isinstance(frame.buffers, RefusedBuffers) and frame.buffers:
            problem = problem or frame.buffers.why
        if not problem:
            memory = self._memories[identifier]
            try:
                if frame.kind is Kind.GET:
                    buffers = (memory.read(offset, nbytes),)
                elif landed is None or frame.buffers[0] is not landed[1][0]:
                    memory.write(offset, frame.buffers[0])
            except OSError as error:
                problem = str(error)
        with contextlib.suppress(TransportError):  # the requester is gone
            channel.send(Frame(Kind.DATA, frame.reply, frame.dest, problem.encode(), buffers))

    def _serve_list(self, channel: FrameChannel, frame: Frame) -> None:
        """Answer a list with the data of its pieces, or with what is wrong with the first that is: then none moves."""
        write = frame.kind is Kind.PUT_LIST
        problem: ListProblem | None = None
        pieces: list[ListedPiece] = []
        try:
            pieces = parse_list(frame.body)
        except FrameError as error:
            problem = ListProblem(None, str(error))
        for place, (identifier, offset, nbytes) in enumerate(pieces):
            why = self._problem(identifier, offset, nbytes, write=write)
            if why:
                problem = ListProblem(place, why)
                break
        num_bytes = sum(piece.num_bytes for piece in pieces)
        if problem is None and write and list(sizes_of(frame.buffers)) != [num_bytes]:
            problem = ListProblem(None, f"a list of {num_bytes} bytes came with data of another length")
        elif problem is None and write and isinstance(frame.buffers, RefusedBuffers):
            problem = ListProblem(None, frame.buffers.why)
        buffers: tuple[bytes, ...] = ()
        if problem is None:
            found = [(self._memories[identifier], offset, nbytes) for identifier, offset, nbytes in pieces]
            try:
                if write:
                    _write_all(found, frame.buffers[0])
                else:
                    buffers = (b"".join(memory.read(offset, nbytes) for memory, offset, nbytes in found),)
            except OSError as error:
                problem = ListProblem(None, str(error))
        body = b"" if problem is None else pack_problem(problem)
        with contextlib.suppress(TransportError):  # the requester is gone
            channel.send(Frame(Kind.DATA, frame.reply, frame.dest, body, buffers))

    def _problem(self, identifier: bytes, offset: int, nbytes: int, *, write: bool) -> str:
        memory = self._memories.get(identifier)
        if memory is None:
            return "it has no such memory, or has closed it"
        return memory.parts.problem(offset, nbytes, write=write)

    def forget(self, channel: FrameChannel) -> None:
        """Drop the state of *channel*, on which nothing more arrives."""
        self._landings.pop(channel, None)


def _write_all(pieces: list[tuple[Memory, int, int]], data: Buffer) -> None:
    """Distribute *data* over pieces of memories, their places and sizes; those of devices are copied in the end."""
    places = [
        memoryview(bytearray(nbytes)) if memory.parts.on_device else memory.part(offset, nbytes)
        for memory, offset, nbytes in pieces
    ]
    scatter(data, places)
    for (memory, offset, _nbytes), place in zip(pieces, places, strict=True):
        if memory.parts.on_device:
            memory.write(offset, place)
