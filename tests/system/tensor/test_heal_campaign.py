"""A few runs of the campaign that kills ranks at seeded points; benchmarks/heal.py has the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from benchmarks.heal import draw
from tests.guards.tree import ROOT


def test_plans_name_points_that_their_ranks_reach() -> None:
    faults = [fault for seed in range(1, 321) for fault in draw(seed, 8)]
    assert {rank for rank, _life, point, *_ in faults if point == "reply"} == {0}  # which all values are read from
    assert {rank for rank, *_ in faults} == {0, 1, 2, 3}


@pytest.mark.slow
def test_trainings_whose_ranks_are_killed_end_equal() -> None:
    modes = ["respawn", "on-loss", "shrink", "grow"]
    options = ["--modes", *modes, "--first", "23", "--seeds", "1", "--steps", "4"]
    argv = [sys.executable, "-m", "benchmarks.heal", *options]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "{'equal': 4, 'unharmed': 0, 'lost': 0, 'wrong': 0}" in run.stdout
    num_deaths = {"respawn": 2, "on-loss": 2, "shrink": 1, "grow": 2}  # with the second one as it comes back
    assert run.stderr.count("died: signal 9") == sum(num_deaths.values())
