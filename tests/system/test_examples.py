"""The programs in examples/ run, check their own results, and fit on two screens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_two_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_its_first_lines_say(path: Path, tmp_path: Path) -> None:
    words = f"run --local 2 examples/{path.name}"
    assert f"monarch-hpc {words}" in path.read_text().split('"""')[1]
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
