"""Writes a program's output to this command's own streams, and passes its input on, each in a thread of its own."""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable

from monarch_hpc.attach.program_client import ProgramClient
from monarch_hpc.wire.control.programs import MAX_INPUT_BYTES, ProgramOutput

__all__ = ["InputThread", "Mirror"]

_FDS = {"out": 1, "err": 2}

_FREEZE_S = 1.0
"""Longest wait for a write that has begun when the output is frozen; one for which there is room takes less."""


class Mirror:
    """Writes output to standard output and standard error, and asks for more once that is written.

    So a slow terminal holds up only itself, and the head has the position of what was shown.

    Args:
        changed: called on the thread when `broken` has changed.

    Attributes:
        next: offset of the output that follows what was written; -1 for where earlier clients left off.
        broken: whether standard output or standard error is gone: a closed terminal, or pipe.
    """

    def __init__(self, first: int, changed: Callable[[], None]) -> None:
        self.next = first
        self.broken = False
        self._changed = changed
        self._client: ProgramClient | None = None
        self._outputs: queue.SimpleQueue[ProgramOutput | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._frozen = False
        threading.Thread(target=self._work, name="monarch-output", daemon=True).start()

    def put(self, output: ProgramOutput) -> None:
        """Write *output*, and ask for more; from any thread."""
        self._outputs.put(output)

    def follow(self, client: ProgramClient) -> None:
        """Read from *client* from here on, which may be another one than before."""
        self._client = client
        client.read(self.next)

    def finish(self, timeout_s: float | None) -> bool:
        """Write what is queued, and end; return False if that takes longer than *timeout_s*.

        Nothing more is written then, though the reader may make room: `next` says where the output stops.
        """
        self._client = None
        self._outputs.put(None)
        done = self._over.wait(timeout_s)
        if not done and self._writing.acquire(timeout=_FREEZE_S):
            self._frozen = True
            self._writing.release()
        return done

    def _work(self) -> None:
        while (output := self._outputs.get()) is not None:
            try:
                for part in output.parts:
                    self.write(part.offset, part.stream, base64.b64decode(part.data))
                self._skip_to(output.next)
            except OSError:
                self.broken = True
                self._changed()
                break
            client = self._client
            if client is not None:
                client.read(self.next)
        self._over.set()

    def write(self, offset: int, stream: str, data: bytes) -> None:
        """Write output that begins at *offset*; what was written before is left out. Not while others may write.

        Raises:
            OSError: the stream is gone.
        """
        self._skip_to(offset)
        view = memoryview(data)[max(self.next, 0) - offset :]
        room = select.poll()
        room.register(_FDS[stream], select.POLLOUT)
        while view:
            room.poll()  # not under the lock: it may take for ever
            with self._writing:
                if self._frozen:
                    return
                num_bytes = os.write(_FDS[stream], view[: select.PIPE_BUF])
                view = view[num_bytes:]
                self.next += num_bytes

    def _skip_to(self, offset: int) -> None:
        if self._frozen:
            return
        lost_bytes = offset - self.next
        if self.next >= 0 and lost_bytes > 0:
            note = f"[monarch-hpc: {lost_bytes} bytes of output were discarded (config key 'logs.max_file_bytes')]\n"
            os.write(2, note.encode())
        self.next = max(self.next, offset)


class InputThread:
    """Passes standard input on to a program, until either ends.

    Args:
        client: returns the connection to the program; None if it is lost.
        terminal: whether it is a terminal, whose end is not the end of the program's input.
    """

    def __init__(self, client: Callable[[], ProgramClient | None], *, terminal: bool) -> None:
        self._client = client
        self._terminal = terminal
        threading.Thread(target=self._work, name="monarch-input", daemon=True).start()

    def _work(self) -> None:
        more = True
        with contextlib.suppress(Exception):  # the engine is closed under this thread when the command ends
            while more:
                try:
                    data = os.read(0, MAX_INPUT_BYTES)
                except OSError:
                    data = b""
                if not data and self._terminal:
                    return
                client = self._client()
                if client is not None:
                    client.write(data, end=not data)
                    more = bool(data) and client.wait_for_input()
