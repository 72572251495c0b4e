"""The flags of salloc, and its answers; for queues that take no batch job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.config import FlagValue

__all__ = ["find_salloc_job", "read_salloc_refusal", "salloc_flags"]

# Of batch scripts: salloc refuses them, or has its own meaning of them.
_OF_SCRIPTS = frozenset({"output", "error", "input", "open-mode", "export", "signal", "requeue", "no-requeue"})
_NUMBER = re.compile(r"^salloc: (?:Pending|Granted) job allocation (\d+)$", re.MULTILINE)


def salloc_flags(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Return those *flags* of a batch job that salloc takes, too."""
    return {name: value for name, value in flags.items() if name not in _OF_SCRIPTS}


def find_salloc_job(directory: Path) -> int | None:
    """Return the number of the job that salloc has asked for; None as long as it has not said one."""
    try:
        found = _NUMBER.search((directory / "salloc.out").read_text(errors="replace"))
    except FileNotFoundError:
        return None
    return int(found[1]) if found else None


def read_salloc_refusal(directory: Path) -> tuple[int, str] | None:
    """Return salloc's exit status and its words if it has ended without a job; None if it has not."""
    try:
        status = int((directory / "salloc.refused").read_text())
        return status, (directory / "salloc.out").read_text(errors="replace")
    except (FileNotFoundError, ValueError):
        return None
