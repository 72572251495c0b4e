"""The registered memory of a process, as it is used by the process itself and served to others."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.cma.cross_memory import CrossMemory
from monarch_hpc.transport.memory.device.devices import Devices
from monarch_hpc.transport.memory.grants import Grants
from monarch_hpc.transport.memory.moves import Moves, join_transfers
from monarch_hpc.transport.memory.peer import Answered
from monarch_hpc.transport.memory.registry import Memories
from monarch_hpc.transport.memory.requests import Change
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.pulls.pulls import Pulls
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["OwnMemories"]

_HERE = "this process"  # the owner of the memory, in errors


class OwnMemories:
    """The memories of this process itself; see `transport.memory.peer.MemoryPeer`.

    Attributes:
        memories: those that are registered.
        grants: those that other processes have opened.
        cross_memory: what copies memory between this process and others of this host.
        devices: what carries memory of GPUs.
        pulls: copies of other processes' memory into these.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cross_memory = CrossMemory(engine)
        self.devices = Devices(engine, self.cross_memory.copiers)
        self.memories = Memories(engine)
        self.grants = Grants(engine, self.memories, self.cross_memory)
        self.pulls = Pulls(engine, self.grants, self)

    def serve(self, channel: FrameChannel, frame: Frame) -> None:
        """Handle a frame of a process that uses memory of this one; on the driver."""
        if frame.kind is Kind.PULL:
            self.pulls.on_frame(channel, frame)
        else:
            (self.grants.on_request if frame.kind is Kind.MEMORY else self.memories.serve)(channel, frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Drop the state of *channel*, which has ended because of *error*; on the driver."""
        self.memories.forget(channel)
        self.pulls.on_lost(channel, error)
        self.grants.on_lost(channel)

    def move(self, identifier: bytes, offset: int, buffer: object, *, write: bool) -> Transfer:
        """See `transport.memory.peer.MemoryPeer.move`; done on return."""
        memory = self.memories.find(identifier)
        if memory is None:
            transfer = Transfer(self._engine, "")
            transfer.finish(MemoryAccessError(_HERE, self.grants.problem(identifier)))
            return transfer
        return (self.memories.put if write else self.memories.get)(memory.key, offset, buffer)

    def open(self, identifier: bytes, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.open`."""
        memory = self.memories.find(identifier)
        answer = MemoryAccessError(_HERE, self.grants.problem(identifier)) if memory is None else memory.key
        self._engine.call_soon(lambda: answered(answer))

    def move_all(self, moves: Moves) -> Transfer:
        """See `transport.memory.peer.MemoryPeer.move_all`; done on return."""
        return join_transfers(self._engine, str(moves), [self.move(*move[:3], write=move[3]) for move in moves.moves])

    def path(self, _identifier: bytes) -> str:
        """See `transport.memory.peer.MemoryPeer.path`."""
        return "local"

    def find_paths(self, incarnation: int, channels: Mapping[int, FrameChannel]) -> None:
        """Let this process, which has *incarnation*, and others ask for paths; *channels* are by the peer's."""

        def path_of(owner: int, identifier: bytes) -> str:
            channel = channels.get(owner)
            if channel is None:
                return self.path(identifier) if owner == incarnation else ""
            return channel.memory.path(identifier) or channel.fabric

        self.grants.path_of = path_of

    def ask_path(self, identifier: bytes, owner: int, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.ask_path`."""
        self._engine.call_soon(lambda: answered(self.grants.path_of(owner, identifier).encode()))

    def drop(self, identifier: bytes, who: str, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.drop`."""
        self._engine.call_soon(lambda: self._drop(identifier, who, answered))

    def _drop(self, identifier: bytes, who: str, answered: Answered) -> None:
        if not self.grants.revoke(identifier, who, lambda: answered(b"")):
            answered(MemoryAccessError(_HERE, self.grants.problem(identifier)))

    def change(self, identifier: bytes, change: Change, answered: Answered) -> None:
        """See `transport.memory.peer.MemoryPeer.change`."""
        self._engine.call_soon(lambda: self._change(identifier, change, answered))

    def _change(self, identifier: bytes, change: Change, answered: Answered) -> None:
        before, problem = self.grants.change(identifier, change)
        answered(MemoryAccessError(_HERE, problem) if problem else before)
