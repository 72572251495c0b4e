"""A small campaign of random faults on the hosts of the lab.

``CHAOS_FAULTS=40`` makes it a large one, ``CHAOS_SEED`` another one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmarks.chaos import Campaign, draw
from benchmarks.chaos_places import LAB, LabPlace
from monarch_hpc.testing.slurmlab import SlurmLab

_NUM_FAULTS = int(os.environ.get("CHAOS_FAULTS", "4"))
_PER_RUN = 25


@pytest.mark.slow
def test_random_faults_on_the_lab_are_explained_and_survived(
    lab: SlurmLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "9"))
    dice, campaign, place = random.Random(seed), Campaign(), LabPlace(lab, tmp_path / "stderr")
    for faults in draw(_NUM_FAULTS, LAB, _PER_RUN, dice):
        campaign.suffer(place, faults, dice.randrange(2**31), dice)
    campaign.print()
    assert campaign.good, f"CHAOS_SEED={seed} CHAOS_FAULTS={_NUM_FAULTS}\n{capsys.readouterr().out}"
    assert sum(line.num for line in campaign.lines.values()) == _NUM_FAULTS
