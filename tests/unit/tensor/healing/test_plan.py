"""From which ranks replacements get what they must hold."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from monarch_hpc.tensor.healing.boxes import box_of, coordinates, covering
from monarch_hpc.tensor.healing.plan import plan_fill
from monarch_hpc.tensor.stream.holdings import REPLICATED, Held, HeldPart, MemoryTransfer, PartTransfer
from monarch_hpc.tensor.stream.records import MeshSpec

MESH = MeshSpec(1, ("dp", "tp"), (2, 2), (0, 1, 2, 3), 0)


def _piece(dims: tuple[int, ...], storage: int = 0, *, leaf: bool = False, written: bool = False) -> HeldPart:
    return HeldPart(storage, 0, (2,), (1,), "float32", 16, dims, ((4,), (1,)), leaf, written)


def _held(pieces: dict[int, HeldPart], failed: dict[int, int] | None = None, mesh: MeshSpec = MESH) -> Held:
    return Held(pieces, failed or {}, (8, 8), {}, {16: mesh})


def test_places_in_a_mesh() -> None:
    assert [coordinates(MESH, rank) for rank in MESH.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_memory_comes_once_from_a_rank_with_the_same_part() -> None:
    pieces = {5: _piece((REPLICATED, 0)), 6: _piece((REPLICATED, 0)), 7: _piece((0, REPLICATED), 1)}
    plan = plan_fill({rank: _held(pieces, {9: 3}) for rank in (0, 1, 2)}, [3], {16: MESH}, {})
    # 5 and 6 share memory, that of tp=1; 7 is that of dp=1.
    assert plan.memories == [MemoryTransfer(1, 3, 5, 8, 0), MemoryTransfer(2, 3, 7, 8, 1)]
    assert {number: piece.storage for number, piece in plan.pieces[3].items()} == {5: 0, 6: 0, 7: 1}
    assert plan.failed[3] == {9: 3} and not plan.lost


def test_what_nobody_has_is_sent_by_the_program_or_lost_on_all_ranks() -> None:
    pieces = {5: _piece((0, 0)), 6: _piece((0, 0), 1)}
    held = {rank: _held(pieces) for rank in (0, 1, 2)}
    own, others = ((3, 4),), ((0, 1),)  # of 4 elements, each of 4 ranks has one
    plan = plan_fill(held, [3], {16: MESH}, {5: [own], 6: [others]})
    assert (plan.memories, plan.parts, plan.given[3]) == ([], [], [(5, own, ((0, 1),), ((0, 1),))])
    assert plan.lost == {6: (pieces[6], [3])}
    assert all(set(plan.failed[rank]) == {6} for rank in range(4))
    written = {rank: _held({5: _piece((0, 0), written=True)}) for rank in (0, 1, 2)}
    assert set(plan_fill(written, [3], {16: MESH}, {5: [own]}).lost) == {5}
    shared = {rank: _held({5: _piece((0, 0)), 6: _piece((0, 0))}) for rank in (0, 1, 2)}
    assert set(plan_fill(shared, [3], {16: MESH}, {5: [own], 6: [own]}).lost) == {5, 6}


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


ROW = MeshSpec(1, ("dp",), (3,), (0, 1, 2), 0)
SHORT = ROW._replace(sizes=(2,), ranks=(0, 2))


def _rows(dim: int, storage: int = 0) -> HeldPart:
    return _piece((dim,), storage)._replace(whole=((3,), (1,)))


def test_a_smaller_mesh_keeps_the_memory_of_what_is_alike_and_puts_together_what_is_split() -> None:
    pieces = {5: _rows(REPLICATED), 6: _rows(0, 1)}
    plan = plan_fill({rank: _held(pieces, mesh=ROW) for rank in (0, 1, 2)}, [], {16: SHORT}, {})
    kept = [(0, 5, 0), (2, 5, 0), (2, 6, 1)]
    assert plan.memories == [MemoryTransfer(rank, rank, number, 8, place) for rank, number, place in kept]
    # Rank 1 is left out, and gives its row to rank 0, which has two.
    first, second = ((0, 1),), ((1, 2),)
    assert plan.parts == [PartTransfer(0, 0, 6, first, first, 1), PartTransfer(1, 0, 6, first, second, 1)]
    assert plan.pieces[0][6] == pieces[6]._replace(storage=1, shape=(2,))
    assert set(plan.pieces) == {0, 1, 2} and not plan.pieces[1] and not plan.lost


def test_values_on_a_part_of_the_mesh_of_which_nothing_is_left_are_lost() -> None:
    piece = _piece((0,), written=True)
    plan = plan_fill({rank: _held({5: piece}, mesh=ROW) for rank in (0, 1)}, [], {}, {})
    assert plan.lost_state == {5: (piece, [])} and plan.failed == {0: {5: -2}, 1: {5: -2}}


def test_parts_come_from_ranks_of_the_old_and_the_new_shape_after_an_attempt_that_was_cut_off() -> None:
    held = {0: _held({6: _rows(0)}, mesh=SHORT), 2: _held({6: _rows(0)}, mesh=ROW)}  # rank 1 has died meanwhile
    plan = plan_fill(held, [], {16: SHORT}, {})
    assert (plan.memories, plan.parts, plan.lost) == ([MemoryTransfer(2, 2, 6, 8, 0)], [], {})
    assert plan.pieces[0] == {}


def test_boxes_are_put_together_of_parts_that_overlap() -> None:
    whole = ((0, 5), (0, 3))
    quarters = [(rank, box_of(MESH, (0, 1), (5, 3), rank)) for rank in range(4)]
    assert quarters[3] == (3, ((3, 5), (2, 3)))
    assert covering(whole, quarters) == quarters
    assert covering(whole, quarters[:3]) is None
    assert covering(((0, 4),), [("a", ((0, 3),)), ("b", ((2, 4),))]) == [("a", ((0, 3),)), ("b", ((3, 4),))]
    assert covering((), [("a", ())]) == [("a", ())]
    rest = covering(((0, 3), (0, 3)), [("a", ((1, 2), (1, 2))), ("b", ((0, 3), (0, 3)))])
    assert rest is not None and sum((c - a) * (d - b) for _, ((a, c), (b, d)) in rest) == 9
