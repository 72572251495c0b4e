"""`python -m monarch_hpc.telemetry.sql.leaf FD`: answers questions in SQL about the records of one host.

The helper of the host starts it at the first question, and hands it the records of procs over the socket pair FD. It
ends when the helper closes that, and after ten minutes without a question.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any

from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.scribe.procs import ProcPlace
from monarch_hpc.telemetry.sql.engine import MAX_MEMORY_BYTES
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Portion, Rows
from monarch_hpc.wire.control.scribe import AskEngine, BeginLeaf, MergeParts, ProcOver, ProcRuns
from monarch_hpc.wire.tables.pieces import SQL_TABLES, AnswerPart, parse_part, parse_question, spans_of

__all__ = ["HostLeaf", "main"]

_IDLE_S = 600.0
_MAX_ROWS = 1_000_000
"""Limit on the rows of one result of a host."""


class HostLeaf:
    """The records of one host, and answers about them."""

    def __init__(self, messages: MessageSocket) -> None:
        self._messages = messages
        self._begin: BeginLeaf | None = None
        self._procs: dict[ProcPlace, int] = {}
        self._dead: deque[tuple[ProcPlace, int]] = deque()

    def handle(self, message: Message) -> None:
        """Handle one message of the helper."""
        match message:
            case BeginLeaf():
                self._begin = message
            case ProcRuns():
                place = ProcPlace(message.run, message.mesh, message.rank, message.pid)
                self._procs[place] = self._messages.take_fd()
            case ProcOver():
                self._end(ProcPlace(message.run, message.mesh, message.rank, message.pid), failed=message.failed)
            case AskEngine():
                self._reply(message.ticket, message.source, self._answer, message)
            case MergeParts():
                self._reply(message.ticket, message.source, self.merge, message)

    def _end(self, place: ProcPlace, *, failed: bool) -> None:
        fd = self._procs.pop(place, -1)
        if fd < 0:
            return
        if not failed or self._begin is None or not self._begin.keep_dead:
            os.close(fd)
            return
        self._dead.append((place, fd))
        if len(self._dead) > self._begin.keep_dead:
            os.close(self._dead.popleft()[1])

    def _reply(self, ticket: int, source: str, make: Any, message: Message) -> None:
        portions = []
        try:
            part = make(message)
            portions = [Portion(source, part.render(), cut=bool(part.cut))]
        except Exception as error:  # noqa: BLE001 the engine's errors have no class; the host is named as missing
            print(f"a question was not answered: {error}", file=sys.stderr, flush=True)
        self._messages.send(Rows(ticket, portions, [], []))

    def _answer(self, asked: AskEngine) -> AnswerPart:
        from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, results_of
        from monarch_hpc.telemetry.sql.live import live_rows
        from monarch_hpc.telemetry.sql.results import fit

        begin = self._begin
        assert begin is not None, "the helper begins with `BeginLeaf`"
        question = parse_question(asked.pieces)
        procs = [*self._procs.items(), *self._dead]
        rows = {name: json.loads(text) for name, text in asked.rows.items() if name in SQL_TABLES}
        correction = Correction(asked.offset_ns, asked.error_us)
        live, num_lost = live_rows(question.tables, rows, procs, begin.host, correction)
        kept = []
        if begin.directory:
            kept.append(KeptRows(Path(begin.directory), ranks=[begin.rank], hosts={begin.rank: begin.host}))
            num_lost = asked.dropped
        unreadable: list[str] = []
        results = results_of(question.pieces, RowSet(live, kept, question.since_s), unreadable)
        text, is_cut = fit(results, asked.max_bytes, _MAX_ROWS)
        cut = [asked.source] if is_cut else []
        return AnswerPart(text, {}, spans_of([begin.rank]), cut, num_lost)

    @staticmethod
    def merge(asked: MergeParts) -> AnswerPart:
        """Combine the parts of an answer."""
        from monarch_hpc.telemetry.sql.context import combine
        from monarch_hpc.telemetry.sql.results import fit, unpack

        question, parts = parse_question(asked.pieces), [parse_part(text) for text in asked.parts]
        results = [unpack(part.results) for part in parts]
        merged = [combine(piece, [one[place] for one in results]) for place, piece in enumerate(question.pieces)]
        text, is_cut = fit(merged, asked.max_bytes, _MAX_ROWS)
        ranks = [rank for part in parts for first, last in part.ranks for rank in range(first, last)]
        cut = [source for part in parts for source in part.cut] + ([asked.source] if is_cut else [])
        return AnswerPart(text, {}, spans_of(ranks), cut, sum(part.dropped for part in parts))


def main(arguments: list[str]) -> int:
    """Serve one helper until it closes the socket."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    forbid_core_dumps()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    os.umask(0o077)
    messages = MessageSocket(socket.socket(fileno=int(arguments[0])))
    leaf = HostLeaf(messages)
    poller = select.poll()
    while not messages.ended:
        poller.register(messages, select.POLLIN | (select.POLLOUT if messages.num_waiting else 0))
        if not poller.poll(_IDLE_S * 1000):
            return 0
        messages.flush()
        for message in messages.receive():
            leaf.handle(message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
