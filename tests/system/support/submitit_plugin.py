"""Makes submitit find our plugin as setup.cfg declares it, also where the package was installed before that."""

from __future__ import annotations

import configparser
from pathlib import Path

from tests.guards.tree import ROOT

__all__ = ["write_plugin"]


def write_plugin(folder: Path) -> Path:
    """Write the metadata of an installed distribution with our entry points; return the folder for the import path."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    info = folder / "plugin" / "monarch_hpc_plugin-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: monarch-hpc-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[submitit]{setup['options.entry_points']['submitit']}\n")
    return info.parent
