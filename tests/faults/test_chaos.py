"""A small campaign of random faults on embedded hosts.

``CHAOS_FAULTS=1000`` makes it a large one, ``CHAOS_SEED`` another one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmarks.chaos import Campaign, draw
from benchmarks.chaos_places import EMBEDDED, EmbeddedPlace

_NUM_FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
_PER_RUN = 25


@pytest.mark.slow
def test_random_faults_are_explained_and_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "9"))
    dice, campaign, place = random.Random(seed), Campaign(), EmbeddedPlace(tmp_path)
    for faults in draw(_NUM_FAULTS, EMBEDDED, _PER_RUN, dice):
        campaign.suffer(place, faults, dice.randrange(2**31), dice)
    campaign.print()
    assert campaign.good, f"CHAOS_SEED={seed} CHAOS_FAULTS={_NUM_FAULTS}\n{capsys.readouterr().out}"
    assert sum(line.num for line in campaign.lines.values()) == _NUM_FAULTS
