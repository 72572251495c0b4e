"""Memory control groups of this process, cgroup v1 and v2: the limit, and the count of OOM kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["memory_groups", "memory_limit", "num_oom_kills", "parse_counters", "parse_groups", "parse_limit"]

_ROOT = Path("/sys/fs/cgroup")
# The kernel writes "no limit" in v1 as the largest page-aligned number.
_UNLIMITED_BYTES = 1 << 62


def parse_groups(text: str) -> dict[str, str]:
    """Parse ``/proc/PID/cgroup``: controller name -> path; the one group of v2 has the name ``""``."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            groups.update((name, path) for name in controllers.split(","))
    return groups


def parse_limit(text: str) -> int | None:
    """Parse ``memory.max`` or ``memory.limit_in_bytes``; None for no limit, or if the text is not a number."""
    words = text.split()
    if not words or not words[0].isdecimal():
        return None
    value = int(words[0])
    return value if value < _UNLIMITED_BYTES else None


def parse_counters(text: str) -> dict[str, int]:
    """Parse a file of ``name number`` lines, e.g. ``memory.events``; other lines are ignored."""
    counters: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdecimal():
            counters[name] = int(value)
    return counters


def memory_groups(groups: dict[str, str]) -> list[PurePosixPath]:
    """Return the directories below the mount point that may limit this process's memory, innermost first."""
    if "memory" in groups:
        inner = PurePosixPath("memory") / groups["memory"].lstrip("/")
        top = PurePosixPath("memory")
    else:
        inner = PurePosixPath(groups.get("", "/").lstrip("/"))
        top = PurePosixPath()
    return [group for group in (inner, *inner.parents) if group.is_relative_to(top)]


def memory_limit() -> int | None:
    """Return the smallest memory limit on this process in bytes; None for no limit."""
    limits = [
        limit
        for group in _own_groups()
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := parse_limit(_read(group / name))) is not None
    ]
    return min(limits, default=None)


def num_oom_kills() -> int:
    """Return the number of OOM kills in this process's group."""
    for group in _own_groups():
        for name in ("memory.events", "memory.oom_control"):
            counters = parse_counters(_read(group / name))
            if "oom_kill" in counters:
                return counters["oom_kill"]
    return 0


def _own_groups() -> Iterator[Path]:
    groups = memory_groups(parse_groups(_read(Path("/proc/self/cgroup"))))
    return (_ROOT / group for group in groups)


def _read(path: Path) -> str:
    # In containers the path in /proc/self/cgroup is often not mounted: a missing file means no limit.
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
