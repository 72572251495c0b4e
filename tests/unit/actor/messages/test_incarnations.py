"""The table of current procs: all views of a mesh see a replaced proc, and no message from before undoes that."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace

from monarch_hpc.actor.casts.targets import CastTargets
from monarch_hpc.actor.messages.incarnations import CurrentProcs, Incarnations
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.casts import parse_target

FIRST = {rank: ProcRef(7, rank, f"n{rank}", rank, 100 + rank, 1000 + rank, ()) for rank in range(3)}
SECOND = replace(FIRST[1], incarnation=2001, host="n2", restarts=1)
THIRD = replace(FIRST[1], incarnation=3001, restarts=2)


def test_a_proc_is_replaced_for_all_who_hold_the_mesh() -> None:
    table = Incarnations()
    mine, received = table.of(7, FIRST), table.of(7, {1: FIRST[1]})
    assert mine is received and mine == FIRST and not mine.lives
    table.of(7, {1: SECOND})
    assert received[1] is SECOND and mine.lives == {1: 1}
    assert {rank: mine[rank] for rank in (0, 2)} == {rank: FIRST[rank] for rank in (0, 2)}


def test_a_reference_to_an_earlier_one_changes_nothing() -> None:
    table = Incarnations()
    mesh = table.of(7, FIRST)
    for proc in (THIRD, SECOND, FIRST[1]):
        assert table.of(7, {1: proc})[1] is THIRD
    mesh.put(1, FIRST[1])
    assert mesh[1] is THIRD


def test_another_mesh_keeps_the_procs_that_its_actors_live_in() -> None:
    table = Incarnations()
    procs, actors = table.of(7, FIRST), table.of(0xACE, FIRST)
    table.of(7, {1: SECOND})
    assert procs[1] is SECOND and actors[1] is FIRST[1] and not actors.lives


def test_a_mesh_that_is_not_in_use_is_forgotten() -> None:
    table = Incarnations()
    table.of(7, {1: SECOND})
    gc.collect()
    assert table.of(7, FIRST) == FIRST


def test_it_travels_as_a_plain_dict() -> None:
    copy = pickle.loads(pickle.dumps(CurrentProcs(FIRST)))
    assert type(copy) is dict and copy == FIRST
    assert CurrentProcs({1: SECOND}).lives == {1: 1}


def test_casts_name_the_lives_that_they_are_for() -> None:
    region, targets = Region.whole(Extent(("hosts",), (3,))), CastTargets()
    procs = CurrentProcs(FIRST)
    before = targets.of("run", region, procs)
    assert before is not None and parse_target(before.packed).lives == {}
    procs.put(1, SECOND)
    after = targets.of("run", region, procs)
    assert after is not None and parse_target(after.packed).lives == {1: 1}
    # Answers to the earlier casts are those of the earlier proc.
    assert (before.proc(1), after.proc(1)) == (FIRST[1], SECOND)
    assert targets.of("run", region, CurrentProcs(FIRST)) is before


def test_casts_are_not_sent_to_a_choice_of_ranks() -> None:
    region = Region.whole(Extent(("hosts",), (3,))).pick("hosts", [0, 2])
    assert CastTargets().of("run", region, CurrentProcs(FIRST)) is None
