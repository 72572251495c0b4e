"""The choice of a rank: the least busy live one, round-robin among equals."""

from __future__ import annotations

from dataclasses import replace

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.calls.load import Load

FOUR = Region.whole(Extent.of({"hosts": 2, "gpus": 2}))
PROCS = {rank: ProcRef(1, rank, "n0", 0, 1, 100 + rank, ()) for rank in range(4)}


def choose(load: Load, region: Region = FOUR) -> int:
    """Choose a rank, and call it."""
    rank = region.base_rank(load.choose(region, PROCS))
    load.begin(rank)
    return rank


def test_idle_ranks_take_turns() -> None:
    load = Load()
    seen = []
    for _ in range(8):
        seen.append(choose(load))
        load.end(seen[-1])
    assert sorted(seen[:4]) == sorted(seen[4:]) == [0, 1, 2, 3]


def test_the_least_busy_is_chosen() -> None:
    load = Load()
    assert sorted(choose(load) for _ in range(4)) == [0, 1, 2, 3]
    for rank in (0, 2):
        load.begin(rank)  # calls of any kind count
    assert sorted(choose(load) for _ in range(2)) == [1, 3]
    for _ in range(2):
        load.end(2)
    assert choose(load) == 2


def test_views_share_what_is_known_and_choose_among_their_own() -> None:
    load = Load()
    column = FOUR.slice(gpus=1)
    load.begin(1)
    assert [choose(load, column), choose(load, column), choose(load, column)].count(3) == 2
    assert load.choose(FOUR.slice(hosts=1, gpus=1), PROCS) == 0


def test_the_dead_are_not_chosen_while_others_live() -> None:
    load = Load()
    for rank in (0, 1, 2):
        load.begin(rank)
        load.end(rank, PROCS[rank].incarnation)
    assert {choose(load) for _ in range(8)} == {3}
    assert choose(load, FOUR.slice(hosts=0)) in (0, 1)
    load.begin(1)
    load.end(1)  # it answered, so it is alive after all
    assert choose(load) == 1


def test_a_dead_rank_is_chosen_again_once_its_proc_has_been_replaced() -> None:
    load = Load()
    load.end(2, PROCS[2].incarnation)
    procs = {**PROCS, 2: replace(PROCS[2], incarnation=7, restarts=1)}
    assert {load.choose(FOUR, PROCS) for _ in range(8)} == {0, 1, 3}
    assert {load.choose(FOUR, procs) for _ in range(8)} == {0, 1, 2, 3}
