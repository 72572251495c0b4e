"""Moves a program's output from its pipes, or its terminal, into its files, in a thread of its own.

A stalled file system then holds up this program only. The files take whatever the program writes: no client is waited
for, and nothing is kept in memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping

from monarch_hpc.allocation.output_log import OutputLog
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger

__all__ = ["Pump"]

_READ_BYTES = 64 << 10
_REST_BYTES = 8 << 20
"""Output read after the program's end: all that its pipes hold, at most a MiB each; a child that goes on writing is
cut off."""

_log = Logger(__name__)


class Pump:
    """One program's thread.

    Args:
        run: the program's run, for messages.
        fds: stream -> descriptor to read, which this object owns.
        log: where the output goes.
        begin: called on the thread first.
        wrote: called on the thread with the number of bytes of output so far.
        ended: called on the thread last.
    """

    def __init__(
        self,
        run: str,
        fds: Mapping[int, int],
        log: OutputLog,
        begin: Callable[[], None],
        wrote: Callable[[int], None],
        ended: Callable[[], None],
    ) -> None:
        self._run = run
        self._log = log
        self._begin = begin
        self._wrote = wrote
        self._ended = ended
        self._streams = {fd: stream for stream, fd in fds.items()}
        self._poll = select.poll()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._finishing = False
        self._warned = False
        for fd in (self._wakeup, *self._streams):
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        self._thread = threading.Thread(target=self._work, name="monarch-program", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """After the program's end: write what it has left in its pipes, and end."""
        self._finishing = True
        os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Free the rest; after `finish`, and after *ended* was called."""
        os.close(self._wakeup)

    def _work(self) -> None:
        try:
            self._begin()
            while not self._finishing:
                # Without pipes it waits for the program's end only.
                self._move(None)
            rest_bytes = _REST_BYTES
            while rest_bytes > 0 and (moved := self._move(0)):
                rest_bytes -= moved
        except Exception:  # noqa: BLE001 a thread's edge: the program must not be blocked
            _log.exception("the output of run %s is lost from here on", self._run)
        finally:
            for fd in list(self._streams):
                self._close(fd)
            self._log.close()
            self._ended()

    def _move(self, timeout_ms: int | None) -> int:
        """Wait for output, and move what is there; return the number of bytes."""
        moved = 0
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == self._wakeup:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
                continue
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # a terminal that no process has open any more
                data = b""
            if not data:
                self._close(fd)
                continue
            moved += len(data)
            self._write(self._streams[fd], data)
        if moved:
            self._wrote(self._log.end)
        return moved

    def _write(self, stream: int, data: bytes) -> None:
        try:
            self._log.append(stream, data, time.time())
        except (OSError, ConfigError) as error:
            if not self._warned:
                self._warned = True
                _log.warning("cannot keep the output of run %s, which is lost: %s", self._run, error)

    def _close(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._streams[fd]
        os.close(fd)
