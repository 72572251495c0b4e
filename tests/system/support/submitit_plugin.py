"""Makes submitit find our plugin as setup.cfg declares it, also where the package was installed before that."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from tests.guards.tree import ROOT

__all__ = ["plugin_files", "write_plugin"]

_INFO = "monarch_hpc_plugin-0.dist-info"


def plugin_files() -> Mapping[str, str]:
    """The metadata of an installed distribution with our entry points, by path in a folder of the import path."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return {
        f"{_INFO}/METADATA": "Metadata-Version: 2.1\nName: monarch-hpc-plugin\nVersion: 0\n",
        f"{_INFO}/entry_points.txt": f"[submitit]{setup['options.entry_points']['submitit']}\n",
    }


def write_plugin(folder: Path) -> Path:
    """Write these files to a folder in *folder*, and return it."""
    place = folder / "plugin"
    (place / _INFO).mkdir(parents=True)
    for name, text in plugin_files().items():
        (place / name).write_text(text)
    return place
