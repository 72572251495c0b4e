from __future__ import annotations

import pytest

from monarch_hpc.cli.allocations.estimate import plan_choices


@pytest.mark.parametrize(
    ("num_hosts", "time_min", "choices"),
    [
        ("64", 240, [("64", 240), ("64", 120), ("64", 60), ("32", 240), ("16", 240)]),
        ("1", 60, [("1", 60), ("1", 30), ("1", 15), ("1", 120), ("1", 240)]),
        ("2-8", 60, [("2-8", 60), ("2-8", 30), ("2-8", 15), ("4", 60), ("2", 60)]),
        ("1", 1, [("1", 1), ("1", 2), ("1", 4)]),
    ],
)
def test_three_to_five_distinct_choices(num_hosts: str, time_min: int, choices: list[tuple[str, int]]) -> None:
    assert plan_choices(num_hosts, time_min) == choices
