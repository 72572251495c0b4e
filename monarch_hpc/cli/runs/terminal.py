"""This command's terminal while a program has another one on its host: each key goes there, but for Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterator

__all__ = ["Terminal", "has_terminal", "input_waits"]

_IFLAG, _OFLAG, _LFLAG, _CC = 0, 1, 3, 6


def has_terminal() -> bool:
    """Whether all three standard streams are a terminal that this command is in the foreground of."""
    return all(os.isatty(fd) for fd in (0, 1, 2)) and _in_foreground()


def input_waits() -> bool:
    """Whether standard input may be read: a command in the background would be stopped."""
    try:
        return not os.isatty(0) or _in_foreground()
    except OSError:
        return False


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


class Terminal:
    """The terminal at standard input."""

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Leave echo, lines and the layout of output to the program's own terminal; undone at the end.

        Ctrl-C still sends this command SIGINT, which it passes on.
        """
        self._before = termios.tcgetattr(0)
        try:
            self.forward()
            yield
        finally:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def forward(self) -> None:
        """Set the mode again: a shell resets it when this command was stopped."""
        mode = [*self._before]
        mode[_IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON)
        mode[_OFLAG] &= ~termios.OPOST
        mode[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        keys = [*mode[_CC]]
        for key in (termios.VQUIT, termios.VLNEXT):
            keys[key] = os.fpathconf(0, "PC_VDISABLE").to_bytes(1, "little")
        keys[termios.VMIN], keys[termios.VTIME] = 1, 0
        mode[_CC] = keys
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, mode)

    @staticmethod
    def size() -> tuple[int, int]:
        """Rows and columns."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(1)
            return found.lines, found.columns
        return 24, 80
