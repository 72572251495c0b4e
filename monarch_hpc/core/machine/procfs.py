"""Reads what the kernel shows of processes in /proc, and the id of this boot."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

__all__ = ["ProcessStat", "parse_stat", "read_boot_id", "read_environ", "read_stat"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessStat:
    """The contents of ``/proc/PID/stat``.

    Args:
        fields: its fields from the third on: those after the process's name.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: list[bytes]) -> None:
        self._fields = fields

    @property
    def state(self) -> str:
        """The state letter: ``R``, ``S``, ``D``, ``T`` if stopped by a signal, ``t`` if traced, ``Z``, ``X``."""
        return self._fields[0].decode()

    @property
    def has_ended(self) -> bool:
        """Whether the process is a zombie, or dead."""
        return self._fields[0] in (b"Z", b"X")

    @property
    def parent(self) -> int:
        """The parent's process id; 0 for the first process of a PID namespace."""
        return int(self._fields[1])

    @property
    def start_ticks(self) -> int:
        """The start time, in clock ticks since boot."""
        return int(self._fields[19])

    @property
    def environ_range(self) -> tuple[int, int]:
        """First address of the environment that `read_environ` shows, and the address after it; 0 if hidden."""
        return int(self._fields[47]), int(self._fields[48])


def parse_stat(text: bytes) -> ProcessStat | None:
    """Parse the contents of ``/proc/PID/stat``; None if there are no fields.

    The second field is the process's name in parentheses, which may hold spaces, parentheses and any other character;
    no later field has a parenthesis.
    """
    fields = text.rpartition(b")")[2].split()
    return ProcessStat(fields) if fields else None


def read_stat(pid: int | Literal["self"]) -> ProcessStat | None:
    """Read ``/proc/PID/stat``; None if there is no such process.

    Args:
        pid: as the mounted /proc counts processes, which may be that of an outer PID namespace; ``self`` always works.
    """
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except OSError:
        return None


def read_environ(pid: int) -> bytes:
    """Read the NUL-separated environment of a process; empty if it has ended, is a zombie, or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def read_boot_id() -> str:
    """Return the kernel's id of this boot of the machine; raises `OSError` if it cannot be read."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
