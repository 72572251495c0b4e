"""From which ranks replacements get what they must hold."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from monarch_hpc.tensor.healing.plan import coordinates, plan_fill
from monarch_hpc.tensor.stream.holdings import REPLICATED, Held, HeldPart, MemoryTransfer
from monarch_hpc.tensor.stream.records import MeshSpec

MESH = MeshSpec(1, ("dp", "tp"), (2, 2), (0, 1, 2, 3), 0)


def _piece(dims: tuple[int, ...], storage: int = 0, *, leaf: bool = False, written: bool = False) -> HeldPart:
    return HeldPart(storage, 0, (2,), (1,), "float32", 16, dims, ((4,), (1,)), leaf, written)


def _held(pieces: dict[int, HeldPart], failed: dict[int, int] | None = None) -> Held:
    return Held(pieces, failed or {}, (8, 8), {})


def test_places_in_a_mesh() -> None:
    assert [coordinates(MESH, rank) for rank in MESH.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_memory_comes_once_from_a_rank_with_the_same_part() -> None:
    pieces = {5: _piece((REPLICATED, 0)), 6: _piece((REPLICATED, 0)), 7: _piece((0, REPLICATED), 1)}
    plan = plan_fill({rank: _held(pieces, {9: 3}) for rank in (0, 1, 2)}, [3], {16: MESH}, {})
    # 5 and 6 share memory, that of tp=1; 7 is that of dp=1.
    assert plan.transfers == [MemoryTransfer(1, 3, 5, 8), MemoryTransfer(2, 3, 7, 8)]
    assert {number: piece.storage for number, piece in plan.pieces[3].items()} == {5: 0, 6: 0, 7: 1}
    assert plan.failed[3] == {9: 3} and not plan.lost


def test_what_nobody_has_is_sent_by_the_program_or_lost_on_all_ranks() -> None:
    pieces = {5: _piece((0, 0)), 6: _piece((0, 0), 1)}
    held = {rank: _held(pieces) for rank in (0, 1, 2)}
    plan = plan_fill(held, [3], {16: MESH}, {5: {3}, 6: {0}})
    assert (plan.transfers, plan.given[3]) == ([], [5])
    assert plan.lost == {6: (pieces[6], [3])}
    assert all(set(plan.failed[rank]) == {6} for rank in range(4))
    written = {rank: _held({5: _piece((0, 0), written=True)}) for rank in (0, 1, 2)}
    assert set(plan_fill(written, [3], {16: MESH}, {5: {3}}).lost) == {5}
    shared = {rank: _held({5: _piece((0, 0)), 6: _piece((0, 0))}) for rank in (0, 1, 2)}
    assert set(plan_fill(shared, [3], {16: MESH}, {5: {3}, 6: {3}}).lost) == {5, 6}


def test_lost_state_is_left_blank_for_a_checkpoint_where_it_shares_no_memory() -> None:
    pieces = {
        5: _piece((0, 0), leaf=True),
        6: _piece((0, 0), 1),
        7: _piece((0, 0), 2, written=True),
        8: _piece((0, 0), 2),
    }
    held = {rank: _held(pieces) for rank in (0, 1)}
    plan = plan_fill(held, [2, 3], {16: MESH}, {}, loads=True)
    assert plan.blank == {0: {}, 1: {}, 2: {5: pieces[5]}, 3: {5: pieces[5]}}
    assert set(plan.lost_state) == {5, 7}
    assert all(set(plan.failed[rank]) == {6, 7, 8} for rank in range(4))


def test_what_one_rank_has_dropped_is_dropped_by_all() -> None:
    plan = plan_fill({0: _held({5: _piece((REPLICATED, REPLICATED))}), 1: _held({})}, [2, 3], {16: MESH}, {})
    assert plan.dropped == {0: [5], 1: [], 2: [], 3: []} and not plan.pieces[2]
