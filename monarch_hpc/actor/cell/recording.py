"""What one actor has recorded: its state, and the calls that it handles; see `telemetry.recorder`."""

from __future__ import annotations

from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.pen import Handling
from monarch_hpc.telemetry.recorder import ActorRecord, Recorder
from monarch_hpc.transport.api import Peer

__all__ = ["CellRecorder", "peer_of"]


class CellRecorder:
    """Written by its actor's cell.

    Attributes:
        mark: stands for the actor; 0 before it is `born`.
        handling: writes down the calls that the actor handles one after the other.
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
        """The constructor is about to run."""
        self._name = name
        self._record = self._recorder.actor(number, name, rank)
        self._recorder.release(self.handling)
        self._use(self._record.mark)

    def ready(self) -> None:
        """The constructor has returned."""
        assert self._record is not None, "born() comes first"
        self._record.change(RecordKind.ACTOR_READY)

    def peer(self, line: MessageLink) -> int:
        """What stands for the process at the other end of *line*; its `mark` from now on."""
        return peer_of(line, self._recorder)

    def name(self, method: str) -> int:
        """What stands for an endpoint of the actor."""
        return self._recorder.names.endpoint(self._name, method)

    def begin_concurrent(self, line: MessageLink, name: int, slot: int, num_bytes: int, arrived_ns: int) -> Handling:
        """A call begins, and may go on beside others; `finish` it."""
        handling = self._recorder.handling(self.mark)
        handling.begin(name, line.mark or self.peer(line), slot, num_bytes, arrived_ns)
        return handling

    def detach(self) -> None:
        """The call that goes on now may go on beside others; `finish` it."""
        self._use(self.mark)

    def finish(self, handling: Handling) -> None:
        """It has ended."""
        self._recorder.release(handling)

    def ended(self, cause: str, *, failed: bool) -> None:
        """The actor handles nothing any more."""
        self._recorder.release(self.handling)
        if self._record is not None:
            self._record.change(RecordKind.ACTOR_FAILED if failed else RecordKind.ACTOR_STOPPED, cause)


def peer_of(line: MessageLink, recorder: Recorder) -> int:
    """What stands for the process at the other end of a channel in what this one records: from now on its mark."""
    peer = line.peer
    assert isinstance(peer, Peer), "the line of a process to itself has a mark from the start"
    line.mark = recorder.names.proc(peer.incarnation, peer.host)
    return line.mark
