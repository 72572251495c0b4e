"""The programs in examples/ run, check their results themselves, and fit on two screens."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.tree import ROOT
from tests.starter import Starter, open_starter

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


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    with open_starter(tmp_path_factory.mktemp("examples"), 2, 180) as starter:
        yield starter


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_its_first_lines_say(path: Path, starter: Starter, tmp_path: Path) -> None:
    words = f"run --local 2 examples/{path.name}"
    assert f"monarch-hpc {words}" in path.read_text().split('"""')[1]
    if path.stem == "digits_ddp":  # `make demo` has hosts of its own, as users' first command
        command = demo()
        assert command[1:] == words.split()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
        status, output, errors = str(done.returncode), done.stdout, done.stderr
    else:
        status, output = starter.run(path, tmp_path)
        errors = output
    assert status == "0", f"{status}\n{output}{errors}"
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import torch", "import json"])
def test_an_example_that_fails_would_be_noticed(first: str, starter: Starter, tmp_path: Path) -> None:
    for name, last, expected in (("late.py", "raise SystemExit(7)", "7"), ("wrong.py", "1 / 0", "1")):
        (tmp_path / name).write_text(f"{first}\nprint(__name__, __file__)\n{last}\n")
        status, output = starter.run(tmp_path / name, tmp_path)
        assert status == expected
        assert f"__main__ {tmp_path / name}\n" in output
    assert "Traceback" in output and "ZeroDivisionError" in output
