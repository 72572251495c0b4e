"""The input of a program: what a client has sent, written to its pipe or terminal as fast as the program reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Callable

from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Feed", "resize"]

_END_OF_FILE = b"\x04"


class Feed:
    """The input of one program. All methods must be called on the engine's driver.

    Args:
        fd: the writing end of its pipe, or its terminal; this object owns it.
        terminal: whether it is a terminal, whose input is ended by a character.
    """

    def __init__(self, engine: Engine, fd: int, *, terminal: bool) -> None:
        self._engine = engine
        self._fd = fd
        self._terminal = terminal
        self._pending = b""
        self._ending = False
        self._taken: Callable[[bool], None] | None = None
        os.set_blocking(fd, False)

    @property
    def busy(self) -> bool:
        """Whether input is waiting to be read by the program."""
        return self._taken is not None

    def write(self, data: bytes, end: bool, taken: Callable[[bool], None]) -> None:
        """Write *data*, and end the input if *end*; only if it is not `busy`.

        Args:
            taken: called once all of it is written, with whether the program can take no more.
        """
        self._pending = data
        self._ending = end
        self._taken = taken
        if end and self._terminal:
            self._pending += _END_OF_FILE
        self._flush()

    def interrupt(self, character: bytes) -> None:
        """Type *character*, ahead of input that waits, so that the terminal sends the signal."""
        if self._fd >= 0:
            try:
                os.write(self._fd, character)
            except OSError:
                self._pending = character + self._pending
                self._flush()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                resize(self._fd, rows, columns)

    def forget(self) -> None:
        """Forget the client, which is gone: its input is still written, without a report."""
        if self._taken is not None:
            self._taken = lambda _closed: None

    def close(self) -> None:
        """End the input."""
        if self._fd >= 0:
            self._engine.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._report()

    def _flush(self, _mask: int = 0) -> None:
        while self._pending and self._fd >= 0:
            try:
                self._pending = self._pending[os.write(self._fd, self._pending) :]
            except BlockingIOError:
                self._engine.watch(self._fd, self._flush, read=False, write=True)
                return
            except OSError:  # the program has closed its end
                self.close()
                return
        if self._fd >= 0:
            self._engine.unwatch(self._fd)
        if self._ending and not self._terminal:
            self.close()
        else:
            self._report()

    def _report(self) -> None:
        taken, self._taken = self._taken, None
        self._pending = b""
        if taken is not None:
            taken(self._fd < 0)


def resize(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal; its foreground processes get SIGWINCH."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
