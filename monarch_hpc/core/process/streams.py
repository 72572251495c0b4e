"""Occupies the numbers of standard streams that are closed, so that no file or socket of ours gets one of them.

What a library, a child process or a traceback writes to its standard output would otherwise arrive in that socket.
"""

from __future__ import annotations

import os
import sys

__all__ = ["fill_standard_streams", "open_standard_streams"]


def fill_standard_streams() -> None:
    """Open /dev/null as each of the descriptors 0 to 2 that is closed; Python's streams stay as they are."""
    fd = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    while fd <= 2:
        os.set_inheritable(fd, True)  # children have standard streams, too
        fd = os.dup(fd)
    os.close(fd)


def open_standard_streams() -> None:
    """Do the same, and give Python the streams that it lacks: what is written to them is dropped."""
    fill_standard_streams()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
