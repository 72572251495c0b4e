"""A few runs of the campaign that kills ranks at seeded points; benchmarks/heal.py has the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from tests.guards.tree import ROOT


@pytest.mark.slow
def test_trainings_whose_ranks_are_killed_end_equal() -> None:
    argv = [sys.executable, "-m", "benchmarks.heal", "--first", "37", "--seeds", "2"]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "{'equal': 2, 'lost': 0, 'wrong': 0}" in run.stdout
