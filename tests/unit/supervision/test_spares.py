"""Programs get as many hosts as were asked for while there are so many; spares replace lost ones first."""

from __future__ import annotations

from monarch_hpc.supervision.spares import hosts_in_use, substitutes


def test_spares_fill_up_the_hosts_in_use() -> None:
    assert hosts_in_use([0, 1, 2, 3, 4], 5, 1) == [0, 1, 2, 3]
    assert hosts_in_use([0, 2, 3, 4], 5, 1) == [0, 2, 3, 4]
    assert hosts_in_use([0, 4], 5, 1) == [0, 4]
    assert hosts_in_use([0, 1, 2], 3, 0) == [0, 1, 2]
    assert hosts_in_use([0, 1], 2, 2) == [0], "never none"


def test_a_lost_host_gets_a_spare_first_and_never_one_of_its_mesh() -> None:
    present, in_use = [0, 1, 3, 4, 5], [0, 1, 3]
    assert substitutes([0, 1, 2], {2}, present, in_use) == {2: 4}
    assert substitutes([0, 2], {2}, present, in_use) == {2: 4}
    assert substitutes([0, 2, 4, 5], {2}, present, in_use) == {2: 1}
    assert substitutes([0, 2, 6], {2, 6}, [0, 4], [0]) == {2: 4}, "the later one stays without"
    assert substitutes([0, 1], set(), present, in_use) == {}
    assert substitutes([2], {2}, [], []) == {}
