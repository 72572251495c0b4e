"""Samples of a host: its load, its free memory, and how long tasks wait for cores, memory and disks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from monarch_hpc.core.machine.memory import memory_left
from monarch_hpc.wire.tables.samples import HostSample

__all__ = ["HostSampler", "parse_busy", "parse_stall"]


def parse_busy(text: str) -> tuple[int, int]:
    """Return the ticks that the cores were busy, and all their ticks, from the contents of ``/proc/stat``."""
    fields = text.partition("\n")[0].split()
    if len(fields) < 6 or fields[0] != "cpu":
        return 0, 0
    ticks = [int(field) for field in fields[1:9]]  # later ones, of guests, are counted in the first two
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def parse_stall(text: str) -> float:
    """Return the percentage of the last 10 s in which some task waited, from the contents of a PSI file; or -1."""
    for word in text.partition("\n")[0].split():
        name, _, value = word.partition("=")
        if name == "avg10":
            return float(value)
    return -1.0


class HostSampler:
    """Looks at the host of this process.

    Args:
        num_oom_kills: reads the counter of OOM kills of the job's control group.
        proc: where /proc is.
    """

    def __init__(self, host: str, num_oom_kills: Callable[[], int], proc: Path = Path("/proc")) -> None:
        self._host = host
        self._num_oom_kills = num_oom_kills
        self._proc = proc
        self._busy, self._all = 0, 0

    def sample(self, t: float) -> HostSample:
        """Look at it."""
        busy, everything = parse_busy(_read(self._proc / "stat"))
        passed = everything - self._all
        cpu_pct = round(100 * (busy - self._busy) / passed, 1) if self._all and passed > 0 else -1.0
        self._busy, self._all = busy, everything
        free_bytes = memory_left(self._proc)
        pressure = self._proc / "pressure"
        return HostSample(
            self._host,
            t,
            cpu_pct,
            -1 if free_bytes is None else free_bytes,
            parse_stall(_read(pressure / "cpu")),
            parse_stall(_read(pressure / "memory")),
            parse_stall(_read(pressure / "io")),
            self._num_oom_kills(),
            _free_bytes(tempfile.gettempdir()),
        )


def _free_bytes(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return -1
    return found.f_frsize * found.f_bavail


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # a kernel without PSI has no such file, and may refuse to read one that is there
        return ""
