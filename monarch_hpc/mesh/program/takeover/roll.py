"""Collects what the head reports of the procs of a run that this program takes over."""

from __future__ import annotations

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady
from monarch_hpc.wire.control.runs import RunTaken
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["Roll", "ref_of"]


def ref_of(ready: ProcReady, host: str, allocation: str) -> ProcRef:
    """The address of a proc that has reported from *host*, given by name."""
    return ProcRef(
        mesh=ready.mesh,
        rank=ready.proc.rank,
        host=host,
        host_rank=ready.proc.host,
        pid=ready.pid,
        incarnation=int(ready.incarnation),
        addresses=tuple(ready.addresses),
        restarts=ready.restarts,
        allocation=allocation,
    )


class Roll:
    """The last reports about each proc of the run. On the driver, except for `complete`.

    Attributes:
        complete: set when all reports about the past have arrived.
        started: the procs that have started, by place.
        ended: those of them that have ended.
        closed: whether the program has taken over what is here, and gets later reports as any program does.
    """

    def __init__(self, engine: Engine) -> None:
        self.complete = Flag(engine)
        self.started: dict[ProcKey, ProcReady] = {}
        self.ended: dict[ProcKey, ProcEnded] = {}
        self.closed = False

    def take(self, message: Message) -> bool:
        """Keep *message* if it is a report about a proc that is to be taken over."""
        if self.closed:
            return False
        match message:
            case ProcReady():
                self.started[message.proc] = message
                self.ended.pop(message.proc, None)
            case ProcEnded():
                self.ended[message.proc] = message
            case RunTaken():
                self.complete.set()
            case _:
                return False
        return True
