"""`monarch-hpc status --changes`: what has become of an allocation's hosts, runs and procs, when, and why."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from monarch_hpc.allocation.changes import HeadChange, read_changes
from monarch_hpc.cli.output import Console, TextTable

__all__ = ["show_changes"]

_SHOWN = 100
"""Changes that the table shows, the newest last; ``--json`` has all that the files have."""


def show_changes(name: str, directory: Path, output: Console) -> int:
    """Show the changes of one allocation, also after its end, as long as its directory is there."""
    changes = read_changes(directory)
    text: str | TextTable = f"nothing is known of '{name}': its head has not begun, or its directory is gone"
    if changes:
        text = TextTable(["TIME", "WHAT", "SUBJECT", "KIND", "CAUSE"], [_cells(change) for change in changes[-_SHOWN:]])
    output.show({"name": name, "changes": [asdict(change) for change in changes]}, text, [c.what for c in changes])
    return 0


def _cells(change: HeadChange) -> list[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.time_s))
    cause = change.cause.partition("\n")[0]
    return [at, change.what, change.subject or "-", change.kind or "-", cause or "-"]
