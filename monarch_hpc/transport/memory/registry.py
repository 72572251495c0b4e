"""Registers memory that other processes read and write, and serves it from the engine, without running user code.

Where a fabric reaches the memory, it serves it itself; see `transport.memory.operations` for the other side.
"""

from __future__ import annotations

import _thread
import contextlib
import os

from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import ID_BYTES, Key, device_span, host_view, parse_span
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.operations import PIECE_BYTES, Transfer
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind

__all__ = ["Memories"]

_HERE = "this process"  # the owner of the memory, in errors


class Memories:
    """The registered memories of a process.

    `register`, `get` and `put` are for any thread, the rest is for the driver of the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._memories: dict[bytes, Memory] = {}
        self._copying = _thread.allocate_lock()  # its holder accesses a memory of this process itself
        # Target of the PUT frame that is arriving on each channel: the memory's identifier and the view.
        self._landings: dict[FrameChannel, tuple[bytes, list[memoryview]]] = {}

    def register(self, buffer: object, *, writable: bool = True) -> Memory:
        """Let every process that has the key read *buffer*, and write to it if *writable*.

        Args:
            buffer: an object with the buffer protocol or `__cuda_array_interface__`; contiguous.

        Raises:
            TypeError: *buffer* has neither.
            ValueError: *buffer* is not contiguous, or *writable* was asked for and it is read-only.
        """
        identifier = os.urandom(ID_BYTES)
        span = device_span(buffer)
        if span is None:
            view = host_view(buffer, writable=writable)
            memory = Memory(self._forget, buffer, view, 0, Key(identifier, view.nbytes, writable))
        else:
            address, nbytes, may_write = span
            if writable and not may_write:
                raise ValueError(f"the device's memory cannot be written to: {type(buffer).__name__}")
            key = Key(identifier, nbytes, writable, on_device=True)
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

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Read memory of this process itself, with the checks and errors of `transport.api.FrameChannel.get`."""
        return self._copy(key, offset, into, write=False)

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write memory of this process itself, with the checks and errors of `transport.api.FrameChannel.put`."""
        return self._copy(key, offset, data, write=True)

    def _copy(self, key: bytes, offset: int, buffer: object, *, write: bool) -> Transfer:
        view = host_view(buffer, writable=not write)
        transfer = Transfer(self._engine, f"{'put' if write else 'get'} of {view.nbytes} bytes at {offset}, {_HERE}")
        try:
            parts = Key.parse(key)
            parts.check(_HERE, offset, view.nbytes, write=write)
            # In pieces, as on a channel: between two of them the memory may be closed.
            for at in range(0, max(view.nbytes, 1), PIECE_BYTES):
                piece = view[at : at + PIECE_BYTES]
                with self._copying:
                    problem = self._problem(parts.id, offset + at, piece.nbytes, write=write)
                    if problem:
                        raise MemoryAccessError(_HERE, problem)
                    place = self._place(parts.id, offset + at, piece.nbytes)
                    if write:
                        place[:] = piece
                    else:
                        piece[:] = place
        except MemoryAccessError as error:
            transfer.finish(error)
        else:
            transfer.finish()
        return transfer

    def land(self, channel: FrameChannel, head: FrameHead, body: Buffer) -> list[memoryview] | None:
        """Targets for the data of an arriving PUT frame; see `transport.secure.records.Landing`."""
        if head.kind is not Kind.PUT or len(head.buffer_bytes) != 1:
            return None
        identifier, offset, nbytes = parse_span(body)
        memory = self._memories.get(identifier)
        if memory is None or memory.view is None or head.buffer_bytes[0] != nbytes:
            return None
        if memory.parts.problem(offset, nbytes, write=True):
            return None
        places = [memory.view[offset : offset + nbytes]]
        self._landings[channel] = (identifier, places)
        return places

    def serve(self, channel: FrameChannel, frame: Frame) -> None:
        """Answer a GET or PUT frame.

        Raises:
            FrameError: the request cannot be parsed.
        """
        identifier, offset, nbytes = parse_span(frame.body)
        landed = self._landings.pop(channel, None) if frame.kind is Kind.PUT else None
        buffers: tuple[memoryview, ...] = ()
        problem = self._problem(identifier, offset, nbytes, write=frame.kind is Kind.PUT)
        if frame.kind is Kind.PUT and (len(frame.buffers) != 1 or memoryview(frame.buffers[0]).nbytes != nbytes):
            problem = problem or f"a put of {nbytes} bytes came with data of another length"
        if not problem:
            place = self._place(identifier, offset, nbytes)
            if frame.kind is Kind.GET:
                buffers = (place,)
            elif landed is None or frame.buffers[0] is not landed[1][0]:
                place[:] = frame.buffers[0]
        with contextlib.suppress(TransportError):  # the requester is gone
            channel.send(Frame(Kind.DATA, frame.reply, frame.dest, problem.encode(), buffers))

    def _place(self, identifier: bytes, offset: int, nbytes: int) -> memoryview:
        view = self._memories[identifier].view
        assert view is not None, "there is no problem with it"
        return view[offset : offset + nbytes]

    def _problem(self, identifier: bytes, offset: int, nbytes: int, *, write: bool) -> str:
        memory = self._memories.get(identifier)
        if memory is None:
            return "it has no such memory, or has closed it"
        if memory.view is None:
            return "it is a device's memory, which only UCX reaches, and there is no UCX between the two"
        return memory.parts.problem(offset, nbytes, write=write)

    def forget(self, channel: FrameChannel) -> None:
        """Drop the state of *channel*, on which nothing more arrives."""
        self._landings.pop(channel, None)
