"""The protocol of healing holds in all interleavings of small meshes, and every rule of it is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.unit.tensor.healing.model import Broken, Model


@pytest.mark.parametrize(
    ("sizes", "crashes", "suspicions"), [((2, 1, 2), 1, 0), ((2, 1, 1), 2, 0), ((3, 1, 1), 1, 0), ((2, 1, 1), 0, 1)]
)
def test_it_holds(sizes: tuple[int, int, int], crashes: int, suspicions: int) -> None:
    assert Model(*sizes, crashes, suspicions).check() > 100


@pytest.mark.parametrize(
    ("mutant", "sizes", "crashes", "problem"),
    [
        ("no barrier", (2, 2, 2), 1, "torn"),
        ("reply without version", (2, 1, 2), 1, "has seen step 1"),
        ("no known version", (2, 1, 2), 1, "has seen step"),
        ("no roll forward", (3, 1, 2), 1, "stuck|ranks are at|torn"),
        ("roll forward twice", (2, 1, 2), 1, "has applied"),
        ("late messages", (2, 1, 2), 2, "torn|has seen|stuck|ranks are at"),
    ],
)
def test_a_rule_that_is_left_out_is_missed(
    mutant: str, sizes: tuple[int, int, int], crashes: int, problem: str
) -> None:
    with pytest.raises(Broken, match=problem):
        Model(*sizes, crashes, mutant=mutant).check(2_000_000)
