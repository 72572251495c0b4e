"""Passes requests for jobs on to a client that can submit them: many sites take no jobs from compute nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from monarch_hpc.agent.programs.reads import Send
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.programs import UNKNOWN, JobSubmitted, ServeJobs, SubmitJob
from monarch_hpc.wire.control.refusal import refuse

__all__ = ["Submissions"]


@dataclass(frozen=True, slots=True)
class _Open:
    asker: Send
    client: Send


class Submissions:
    """Requests for jobs under way. All methods must be called on the engine's driver."""

    def __init__(self) -> None:
        self._clients: dict[Send, None] = {}  # in the order in which they came
        self._open: dict[int, _Open] = {}
        self._tickets = count(1)

    def handle(self, message: ServeJobs | SubmitJob | JobSubmitted, send: Send) -> None:
        """Handle a message of the peer that *send* answers."""
        match message:
            case ServeJobs():
                self._clients[send] = None
            case SubmitJob():
                self._submit(message, send)
            case JobSubmitted():
                opened = self._open.get(message.ticket)
                if opened is not None and opened.client == send:
                    del self._open[message.ticket]
                    opened.asker(replace(message, ticket=0))

    def forget(self, send: Send) -> None:
        """Handle the loss of a peer: whether a client has submitted what it was asked to is unknown."""
        self._clients.pop(send, None)
        for ticket, opened in list(self._open.items()):
            if send in (opened.client, opened.asker):
                del self._open[ticket]
            if send == opened.client:
                opened.asker(JobSubmitted(0, UNKNOWN, "", "the client that was asked to submit the job is gone"))

    def _submit(self, message: SubmitJob, asker: Send) -> None:
        if not self._clients:
            asker(refuse(message, "no client is attached that could submit it"))
        elif not message.script:
            asker(JobSubmitted(0, 0, "", ""))
        else:
            client, ticket = next(reversed(self._clients)), next(self._tickets)  # the newest: its user is there
            self._open[ticket] = _Open(asker, client)
            client(replace(message, ticket=ticket))
