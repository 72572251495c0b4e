"""Registers memory that other processes read and write, and serves it from the engine, without running user code.

Where a fabric reaches the memory, it serves it itself; see `transport.memory.operations` for the other side.
"""

from __future__ import annotations

import contextlib
import os

from monarch_hpc.core.errors import TransportError
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import ID_BYTES, Key, device_span, host_view, parse_span
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind

__all__ = ["Memories"]


class Memories:
    """The registered memories of a process. `register` is for any thread, the rest is for the driver of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._memories: dict[bytes, Memory] = {}
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
        self._memories.pop(memory.parts.id, None)
        for identifier, places in self._landings.values():
            if identifier == memory.parts.id:
                places[0] = memoryview(bytearray(len(places[0])))  # data that still arrives is discarded
        self._engine.wake_waiters()

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
        problem = self._problem(frame, identifier, offset, nbytes)
        if not problem:
            view = self._memories[identifier].view
            assert view is not None
            place = view[offset : offset + nbytes]
            if frame.kind is Kind.GET:
                buffers = (place,)
            elif landed is None or frame.buffers[0] is not landed[1][0]:
                place[:] = frame.buffers[0]
        with contextlib.suppress(TransportError):  # the requester is gone
            channel.send(Frame(Kind.DATA, frame.reply, frame.dest, problem.encode(), buffers))

    def _problem(self, frame: Frame, identifier: bytes, offset: int, nbytes: int) -> str:
        memory = self._memories.get(identifier)
        if memory is None:
            return "it has no such memory, or has closed it"
        if memory.view is None:
            return "it is a device's memory, which only UCX reaches, and there is no UCX between the two"
        if frame.kind is Kind.PUT and (len(frame.buffers) != 1 or memoryview(frame.buffers[0]).nbytes != nbytes):
            return f"a put of {nbytes} bytes came with data of another length"
        return memory.parts.problem(offset, nbytes, write=frame.kind is Kind.PUT)

    def forget(self, channel: FrameChannel) -> None:
        """Drop the state of *channel*, on which nothing more arrives."""
        self._landings.pop(channel, None)
