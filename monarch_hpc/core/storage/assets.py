"""Finds the files of the three top-level folders `launchers`, `sbatch_templates` and `configs`.

In a wheel they are sub-folders of the package; in a checkout and in an editable install they lie beside it.
No other module depends on that difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from monarch_hpc.core.errors import InternalError

__all__ = ["Folder", "asset"]

Folder = Literal["launchers", "sbatch_templates", "configs"]


def asset(folder: Folder, name: str = "") -> Path:
    """Return the path of a file that ships with the package, or of its folder.

    This is a path, not a `Traversable`: Slurm runs launchers by path, and a zip file has no paths.

    Args:
        folder: one of the three folders.
        name: path within *folder*, e.g. ``sites/slurmlab.yaml``; empty for the folder itself.
    """
    package = Path(__file__).parents[2]
    # The wheel's location first: a `configs` beside an installed package may belong to any other package.
    root = package / folder
    if not root.is_dir():
        root = package.parent / folder
    path = root / name
    if not path.exists():
        raise InternalError(f"the installation of monarch_hpc lacks {folder}/{name} (looked at {path})")
    return path
