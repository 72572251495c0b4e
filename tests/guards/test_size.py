"""Checks that a module is one noun and short enough to read in one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards.tree import ROOT

MAX_LINES = 400
BANNED = {"base", "common", "handler", "helpers", "impl", "manager", "misc", "utils"}
FILES = [
    path
    for folder in ("monarch_hpc", "examples", "benchmarks", "tests", "launchers", "sbatch_templates")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".sh", ".sbatch")
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_and_well_named(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{path} has {lines} lines; split it by reason, not by length"
    assert not {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts} & BANNED
