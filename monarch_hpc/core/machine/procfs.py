"""Reads what the kernel shows of processes in /proc, and the id of this boot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

__all__ = [
    "PROC",
    "ProcessStat",
    "each_pid",
    "own_umask",
    "parse_stat",
    "read_anonymous_bytes",
    "read_boot_id",
    "read_command",
    "read_cpu_s",
    "read_environ",
    "read_resident_bytes",
    "read_stat",
]

PROC = Path("/proc")
# The kernel's own limit is a quarter of the stack's, which is 8 MiB nearly everywhere.
_MAX_ENVIRON_BYTES = 1 << 23
_USUAL_BYTES = 1 << 16
# Each listing is shorter by far than the one before, but on a host where processes begin faster than they are seen.
_MAX_LISTINGS = 8

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
    def cpu_s(self) -> float:
        """CPU time of all its threads so far, in seconds."""
        return (int(self._fields[11]) + int(self._fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def major_faults(self) -> int:
        """Pages so far that the process had to wait for a disk to get."""
        return int(self._fields[9])

    @property
    def num_threads(self) -> int:
        """The number of its threads."""
        return int(self._fields[17])

    @property
    def resident_pages(self) -> int:
        """Its resident memory, in pages, shared ones included; 0 for a process that has ended."""
        return max(int(self._fields[21]), 0)

    @property
    def start_ticks(self) -> int:
        """The start time, in clock ticks since boot."""
        return int(self._fields[19])

    @property
    def memory_bytes(self) -> int:
        """The size of its address space, in bytes; 0 for a thread of the kernel, and for a process that has ended."""
        return int(self._fields[20])

    @property
    def code_address(self) -> int:
        """Where its program begins, which the kernel sets after the environment; 0 in the midst of an exec."""
        return int(self._fields[23])

    @property
    def stack_address(self) -> int:
        """Where its stack begins, at a random place since its last exec; 0 if hidden."""
        return int(self._fields[25])

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


def each_pid(proc: Path = PROC) -> Iterator[int]:
    """Yield the id of every process, of those too that begin while the caller looks at the ones before.

    One that forks and ends before the caller looks at it would otherwise leave a process unseen.
    """
    seen: set[int] = set()
    for _ in range(_MAX_LISTINGS):
        new = {int(name) for name in os.listdir(proc) if name.isdecimal()} - seen
        if not new:
            return
        yield from sorted(new)
        seen |= new


def read_stat(pid: int | Literal["self"], proc: Path = PROC) -> ProcessStat | None:
    """Read ``/proc/PID/stat``; None if there is no such process.

    Args:
        pid: as the mounted /proc counts processes, which may be that of an outer PID namespace; ``self`` always works.
        proc: where /proc is.
    """
    try:
        return parse_stat(_read(f"{proc}/{pid}/stat"))
    except OSError:
        return None


def read_environ(pid: int, proc: Path = PROC) -> bytes | None:
    """Read the NUL-separated environment of a process; empty if it has ended, is a zombie, or another user's.

    Returns:
        None if the process is within an exec, from the moment when its old memory is gone to that when the kernel
        knows its new environment: look again.
    """
    try:
        if found := _read(f"{proc}/{pid}/environ"):
            return found
    except OSError:
        return b""
    stat = read_stat(pid, proc)
    if stat is None or stat.has_ended or not stat.memory_bytes:
        return b""
    begin, end = stat.environ_range
    if begin == end and stat.code_address:
        return b""
    own = read_stat("self")
    # A kernel that shows no addresses at all, such as gVisor's, says nothing of an exec.
    return b"" if own is not None and not own.code_address else None


def read_command(pid: int, proc: Path = PROC) -> bytes:
    """Read the NUL-terminated words of a process's command line; raises `OSError` if it has ended."""
    return _read(f"{proc}/{pid}/cmdline")


def _read(path: str) -> bytes:
    """The contents of a file of a process; by system calls alone, since some callers look at all processes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(fd, _USUAL_BYTES)
        # In one read: a second one would find nothing more of the environment if the process has begun an exec.
        return found if len(found) < _USUAL_BYTES else os.pread(fd, _MAX_ENVIRON_BYTES, 0)
    finally:
        os.close(fd)


def read_cpu_s(pid: int, proc: Path = PROC) -> float:
    """The CPU time of a process and its threads so far, in seconds; 0 if there is no such process."""
    found = read_stat(pid, proc)
    return 0.0 if found is None else found.cpu_s


def read_resident_bytes(pid: int) -> int:
    """Read the resident memory of a process, shared pages included; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def read_anonymous_bytes(pid: int) -> int:
    """Read the resident memory of a process that is of no file, shared with forks or not; 0 if it has ended."""
    try:
        _, resident, of_files, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def read_boot_id() -> str:
    """Return the kernel's id of this boot of the machine; raises `OSError` if it cannot be read."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def own_umask() -> int:
    """This process's file mode mask, read from `/proc`: `os.umask` would have to change it, for all threads."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), 8)
