"""The end of a process: exit code, signal, out of memory."""

from __future__ import annotations

import signal

from monarch_hpc.core.dataclass import dataclass

__all__ = ["TIMED_OUT", "Exit"]

TIMED_OUT = 124
"""Exit code of a program that was ended because the time that its user gave it was over, as of timeout(1)."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process, by exit code or signal.

    Attributes:
        code: exit code; None if a signal ended the process.
        signal: the signal; None if the process exited.
        oom: whether the kernel killed the process because its control group was out of memory.
    """

    code: int | None
    signal: int | None
    oom: bool = False

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:  # real-time signals have no names
            name = "real-time signal"
        words = f"signal {self.signal} ({name})"
        return f"out of memory: the kernel killed it with {words}" if self.oom else words
