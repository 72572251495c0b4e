"""`choose`: equally loaded ranks get equal shares, whatever the load and deaths of others."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.calls.load import Load

_WAITING = st.lists(st.integers(-1, 3), min_size=1, max_size=12)
"""Number of unanswered calls of each rank; -1 for a dead rank."""

PROCS = {rank: ProcRef(1, rank, "n0", 0, 1, 100 + rank, ()) for rank in range(24)}


def loaded(waiting: list[int]) -> Load:
    load = Load()
    for rank, num in enumerate(waiting):
        for _ in range(abs(num)):
            load.begin(rank)
        if num < 0:
            load.end(rank, PROCS[rank].incarnation)
    return load


@given(_WAITING, st.integers(1, 5))
def test_those_that_are_equally_busy_have_equal_shares(waiting: list[int], rounds: int) -> None:
    load, region = loaded(waiting), Region.whole(Extent(("ranks",), (len(waiting),)))
    living = [num for num in waiting if num >= 0]
    free = [rank for rank, num in enumerate(waiting) if not living or num == min(living)]
    shares = Counter(load.choose(region, PROCS) for _ in range(rounds * len(free)))
    assert shares == Counter(dict.fromkeys(free, rounds))


@given(_WAITING, st.lists(st.booleans(), max_size=60))
def test_two_views_of_a_mesh_do_not_take_each_others_turns(waiting: list[int], first: list[bool]) -> None:
    load = loaded(waiting * 2)
    num = len(waiting)
    views = [Region(Extent(("ranks",), (num,)), offset, (1,)) for offset in (0, num)]
    living = [one for one in waiting if one >= 0]
    num_free = sum(one == min(living) for one in waiting) if living else num
    for view in (0, 1):
        chosen = [load.choose(views[which], PROCS) for which in map(int, first) if which == view]
        assert all(len(set(chosen[at : at + num_free])) == len(chosen[at : at + num_free]) for at in range(len(chosen)))
