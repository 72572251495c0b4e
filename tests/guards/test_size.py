"""Checks that a module is one noun and short enough to read in one sitting, and that folders are small."""

from __future__ import annotations

from pathlib import Path

from tests.guards.tree import ROOT, for_each

MAX_LINES = 400
BANNED = {"base", "common", "handler", "helpers", "impl", "manager", "misc", "utils"}
FILES = [
    path
    for folder in ("monarch_hpc", "examples", "benchmarks", "tests", "launchers", "sbatch_templates")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".sh", ".sbatch")
]


@for_each(FILES)
def test_a_module_is_short_and_well_named(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{path} has {lines} lines; split it by reason, not by length"
    assert not {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts} & BANNED


MAX_MODULES = 15
FOLDERS = sorted({path.parent for path in FILES if path.is_relative_to(ROOT / "monarch_hpc")})


@for_each(FOLDERS)
def test_a_folder_is_small(folder: Path) -> None:
    found = [path for path in FILES if path.parent == folder and path.name != "__init__.py"]
    assert len(found) <= MAX_MODULES, f"{folder} has {len(found)} modules; give those that belong together a room"
