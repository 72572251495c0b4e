"""Listing of folders whose contents vanish meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["paths_below"]


def paths_below(folder: Path) -> Iterator[Path]:
    """All files and folders below *folder*; unlike `Path.rglob` it passes over folders that go meanwhile."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))
