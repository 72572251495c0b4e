"""The programs in examples/ run, check their results themselves, and fit on two screens."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_two_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120


def demo() -> list[str]:
    """The command that `make demo`, README's first command, runs after installation."""
    if shutil.which("make") is None:
        pytest.skip("make is not on PATH")
    installed = ".venv/installed-examples"
    folder = Path(sys.executable).parent
    command = ["make", "--silent", "--dry-run", f"--assume-old={installed}", f"BIN={folder}", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_its_first_lines_say(path: Path, tmp_path: Path) -> None:
    words = f"run --local 2 examples/{path.name}"
    assert f"monarch-hpc {words}" in path.read_text().split('"""')[1]
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", str(path)]
    folder = tmp_path
    if path.stem == "digits_ddp":
        command, folder = demo(), ROOT
        assert command[1:] == words.split()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
