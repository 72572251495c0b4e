"""Another user of the same primary group, and a folder that this group may write."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["GID", "UID", "act", "needs_root", "shared"]

UID, GID = 48001, 48000
"""Ids that no user or group has."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a second user")


def act(script: str, folder: Path) -> None:
    """Run *script* in *folder* as the other user."""
    subprocess.run(["/bin/sh", "-euc", script], cwd=folder, user=UID, group=GID, extra_groups=[], check=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of this user that the group may write, at a path that the other user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    os.chown(folder, -1, GID)
    folder.chmod(0o2775)
    yield folder
    shutil.rmtree(folder)
