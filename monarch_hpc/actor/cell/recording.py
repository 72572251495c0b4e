"""Records the state of one actor and the calls that it handles; see `telemetry.recorder`."""

from __future__ import annotations

from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.pen import Handling
from monarch_hpc.telemetry.recorder import ActorRecord, Recorder
from monarch_hpc.transport.api import Peer

__all__ = ["CellRecorder", "peer_of"]


class CellRecorder:
    """Writes the records of one actor; used by its cell.

    Attributes:
        mark: identifies the actor in records; 0 before `spawned`.
        handling: records the calls that the actor handles one after the other.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._record: ActorRecord | None = None
        self._name = ""
        self._use(0)

    def _use(self, mark: int) -> None:
        self.mark = mark
        self.handling = self._recorder.handling(mark)

    def spawned(self, number: int, name: str, rank: int) -> None:
        """Record that the constructor is about to run."""
        self._name = name
        self._record = self._recorder.actor(number, name, rank)
        self._recorder.release(self.handling)
        self._use(self._record.mark)

    def ready(self) -> None:
        """Record that the constructor has returned."""
        assert self._record is not None, "spawned() comes first"
        self._record.change(RecordKind.ACTOR_READY)

    def peer(self, line: MessageLink) -> int:
        """Return the name number of the peer of *line*, and set it as the line's `mark`."""
        return peer_of(line, self._recorder)

    def name(self, method: str) -> int:
        """Return the name number of an endpoint of the actor."""
        return self._recorder.names.endpoint(self._name, method)

    def begin_concurrent(self, line: MessageLink, name: int, slot: int, num_bytes: int, arrived_ns: int) -> Handling:
        """Record the start of a call that may overlap others; end it with `finish`."""
        handling = self._recorder.handling(self.mark)
        handling.begin(name, line.mark or self.peer(line), slot, num_bytes, arrived_ns)
        return handling

    def detach(self) -> None:
        """Let the current call overlap others; end its `handling` with `finish`."""
        self._use(self.mark)

    def finish(self, handling: Handling) -> None:
        """Release the record of a call that has ended."""
        self._recorder.release(handling)

    def ended(self, cause: str, *, failed: bool) -> None:
        """Record the end of the actor."""
        self._recorder.release(self.handling)
        if self._record is not None:
            self._record.change(RecordKind.ACTOR_FAILED if failed else RecordKind.ACTOR_STOPPED, cause)


def peer_of(line: MessageLink, recorder: Recorder) -> int:
    """Return the name number of the peer of *line*, and set it as the line's `mark`."""
    peer = line.peer
    assert isinstance(peer, Peer), "a loopback link has a mark from the start"
    line.mark = recorder.names.proc(peer.incarnation, peer.host)
    return line.mark
