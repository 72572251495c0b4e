"""Where the files of the three top-level folders lie: `launchers`, `sbatch_templates`, `configs`.

In a wheel they are sub-folders of the package, in a checkout and in an editable install its
neighbours. Only this module knows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from monarch_hpc.core.errors import InternalError

__all__ = ["Folder", "asset"]

Folder = Literal["launchers", "sbatch_templates", "configs"]


def asset(folder: Folder, name: str = "") -> Path:
    """Return the path of a file that ships with the package, or of its folder.

    A path, not a `Traversable`: Slurm runs launchers by their path, which a zip file cannot give.

    Args:
        folder: one of the three.
        name: path within it, e.g. ``sites/slurmlab.yaml``; empty for the folder itself.
    """
    package = Path(__file__).parents[1]
    # The wheel's place first: beside an installed package, `configs` may be anybody's.
    root = package / folder
    if not root.is_dir():
        root = package.parent / folder
    path = root / name
    if not path.exists():
        raise InternalError(f"the installation of monarch_hpc lacks {folder}/{name} (looked at {path})")
    return path
