"""The trees of copies: every host gets the bytes once and sends them to as many as it may, whoever takes part."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from monarch_hpc.rdma.spread.tree import SOURCE, choose_chunk, choose_fan_out, plan_parents

MIB = 2**20


@pytest.mark.parametrize("fan_out", [1, 2, 3])
@pytest.mark.parametrize("per_host", [1, 3, 20])
def test_each_byte_crosses_the_link_of_a_host_once(per_host: int, fan_out: int) -> None:
    hosts = {index: f"n{index % 5}" for index in range(5 * per_host)}
    everyone = {SOURCE: "n0", **hosts}
    for gone in itertools.chain([set()], ({index} for index in hosts)):
        order = [index for index in hosts if index not in gone]
        parents = plan_parents(hosts, "n0", order, fan_out=fan_out)
        assert sorted(parents) == order
        crossing = [(everyone[parent], hosts[child]) for child, parent in parents.items()]
        into = [child for parent, child in crossing if parent != child]
        assert sorted(into) == sorted({hosts[index] for index in order} - {"n0"})
        out_of = [parent for parent, child in crossing if parent != child]
        assert max(map(out_of.count, out_of), default=0) <= fan_out
        for index in order:
            assert SOURCE in list(itertools.islice(_above(parents, index), len(hosts) + 1))


def _above(parents: dict[int, int], index: int) -> Iterator[int]:
    while index != SOURCE:
        index = parents[index]
        yield index


def test_nobody_pulls_from_a_leaf() -> None:
    hosts = dict(enumerate(["n1", "n1", "n2", "n3", "n3"]))
    parents = plan_parents(hosts, "n0", list(hosts), leaves={0, 2})
    assert parents == {1: SOURCE, 0: 1, 3: 1, 4: 3, 2: 3}


def test_a_leaf_alone_pulls_from_the_source() -> None:
    assert plan_parents({0: "n1"}, "n0", [0], leaves={0}) == {0: SOURCE}


def test_much_data_goes_down_a_chain_and_little_through_a_tree() -> None:
    assert choose_fan_out(512, 8) == 1
    assert choose_fan_out(1, 8) > 1
    assert choose_fan_out(512, 2000) > 1
    assert choose_fan_out(1, 0) == choose_fan_out(1, 1) == 1


def test_chunks_are_small_beside_the_whole_and_cost_little_each() -> None:
    assert 128 * MIB // choose_chunk(128 * MIB, 8) >= 8 * 3 * 8
    assert choose_chunk(1, 1) == 256 << 10
    assert choose_chunk(2**40, 1) == 4 * MIB
    assert choose_chunk(100 * MIB + 1, 3) % 4096 == 0
