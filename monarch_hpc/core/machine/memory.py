"""Reads how much memory this process may still use: of the machine, and of the control groups around the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_left"]

_V2 = ("memory.max", "memory.current")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_RECLAIMED = frozenset({"inactive_file", "active_file", "total_inactive_file", "total_active_file"})
"""Lines of ``memory.stat`` that count the page cache, which the kernel drops before it refuses memory; those of version
1 with the groups below are the ones that count."""


def memory_left(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that can be used before the kernel ends a process for want of memory; None if unknown.

    Args:
        proc, groups: where these file systems are mounted.
    """
    limits = list(_group_limits(proc, groups))
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    return max(min(limits), 0) if limits else None


def _group_limits(proc: Path, groups: Path) -> Iterator[int]:
    """What is left in each control group of this process that has a limit, and in those above it."""
    for line in _lines(proc / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounted, (limit_name, used_name) = groups, _V2
        elif "memory" in controllers.split(","):
            mounted, (limit_name, used_name) = groups / "memory", _V1
        else:
            continue
        # In a container the path may be one of the host's, which is not to be seen here: its root is the group then.
        group = mounted / path.lstrip("/")
        while True:
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None:
                yield limit - used + _page_cache(group / "memory.stat")
            if group == mounted or mounted not in group.parents:
                break
            group = group.parent


def _page_cache(stat: Path) -> int:
    sizes = {name: int(size) for name, _, size in (line.partition(" ") for line in _lines(stat)) if name in _RECLAIMED}
    totals = [size for name, size in sizes.items() if name.startswith("total_")]
    return sum(totals or sizes.values())


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
