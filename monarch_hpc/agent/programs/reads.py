"""Reads programs' output from files for clients, in its own thread: a stalled file system must not stall the agent."""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from monarch_hpc.allocation.output_log import STREAMS, OutputReader, Piece
from monarch_hpc.allocation.programs import ProgramExit, read_exit, read_program, run_folder
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.programs import MAX_READ_BYTES, OutputPart, ProgramEnded, ProgramOutput, ReadOutput
from monarch_hpc.wire.control.refusal import refuse

__all__ = ["OutputReads", "Send"]

Send = Callable[[Message], None]

_KEEP = 64
"""Number of clients whose place in the files is remembered; another one's is searched again."""

_log = Logger(__name__)


class OutputReads:
    """The thread, which answers one request after the other.

    Args:
        directory: the allocation's directory.
    """

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        self._readers: Recent[tuple[Send, str], OutputReader] = Recent(_KEEP)
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, send: Send, request: ReadOutput, known: int | ProgramExit | None) -> None:
        """Answer *request* to *send*, on the driver.

        Args:
            known: number of bytes of output so far; once the program has ended, its end, or None if it is not known.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="monarch-reads", daemon=True)
            self._thread.start()
        self._requests.put(partial(self._answer, send, request, known))

    def close(self) -> None:
        """End the thread after the requests so far, without waiting for it."""
        if self._thread is not None:
            self._requests.put(None)

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            request()

    def _answer(self, send: Send, request: ReadOutput, known: int | ProgramExit | None) -> None:
        try:
            answer = self._read(send, request, known)
        except Exception as error:  # noqa: BLE001 a thread's edge: the client must get an answer
            _log.warning("cannot read the output of run %s: %s", request.run, error)
            answer = refuse(request, f"its output cannot be read: {error}")
        self._engine.call_soon(lambda: send(answer))

    def _read(self, send: Send, request: ReadOutput, known: int | ProgramExit | None) -> Message:
        reader = self._readers.get((send, request.run))
        if reader is None:
            reader = self._readers[send, request.run] = OutputReader(run_folder(self._directory, request.run))
        pieces = reader.read(request.offset, MAX_READ_BYTES)
        if pieces:
            return ProgramOutput(request.run, _parts(pieces), pieces[-1].offset + len(pieces[-1].data))
        if isinstance(known, int):
            return ProgramOutput(request.run, [], max(known, request.offset))
        try:
            end = known or read_exit(self._directory, request.run)
            started = end is not None or read_program(self._directory, request.run) is not None
        except ConfigError as error:
            return refuse(request, str(error))
        if end is not None:
            return ProgramEnded(request.run, end.exit_code, end.cause)
        return refuse(request, "how it ended is not recorded" if started else "it has no program on this host")


def _parts(pieces: list[Piece]) -> list[OutputPart]:
    """Encode *pieces*, those of one stream that follow each other as one part: lines come one by one."""
    parts: list[OutputPart] = []
    at = 0
    while at < len(pieces):
        first = pieces[at]
        chunks = [first.data]
        end = first.offset + len(first.data)
        while (at := at + 1) < len(pieces) and (pieces[at].offset, pieces[at].stream) == (end, first.stream):
            chunks.append(pieces[at].data)
            end += len(pieces[at].data)
        data = base64.b64encode(b"".join(chunks)).decode()
        parts.append(OutputPart(first.offset, STREAMS[first.stream], data))
    return parts
