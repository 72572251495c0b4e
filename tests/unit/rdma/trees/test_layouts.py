"""Laws of layouts: whatever views a tree has, its elements arrive, and what shares memory shares it there."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_hpc.rdma.shard import Shard
from monarch_hpc.rdma.trees.arrangement import arrange, join_ranges
from monarch_hpc.rdma.trees.boxes import Box
from monarch_hpc.rdma.trees.copies import Copies
from monarch_hpc.rdma.trees.layout import Layout, Root, pack_places, selected_keys
from monarch_hpc.rdma.trees.leaf import Leaf, look_at_leaf
from monarch_hpc.rdma.trees.plan import Plan
from monarch_hpc.rdma.trees.strides import PIECE_COST_BYTES, Strides, cheapest_runs, dense_strides

sizes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def leaves_of(tree: dict[str, Any]) -> dict[str, Leaf]:
    found = {}
    for key, value in tree.items():
        leaf = look_at_leaf(key, value)
        assert leaf is not None
        found[key] = leaf
    return found


def copied(tree: dict[str, Any], dtype: str = "") -> tuple[Layout, list[Any]]:
    """The layout of a copy of *tree*, and its blocks."""
    leaves = leaves_of(tree)
    arrangement = arrange(leaves)
    copies = Copies(arrangement, 1, dtype)
    copies.write(0, arrangement, leaves)
    return Layout(copies.entries, (), tuple(copies.regions), ((),), True, b"", None), copies.blocks[0]


def read(parts: list[tuple[Layout, list[Any]]], targets: dict[str, Any], turn: int = 0) -> Plan:
    """Do what a reader's transfers do."""
    plan = Plan([layout for layout, _blocks in parts], leaves_of(targets), turn)
    for move in plan.moves:
        block = parts[move.part][1][move.memory]
        source = block[move.source : move.source + move.num_bytes]
        assert len(source) == move.num_bytes
        ctypes.memmove(move.target, source.tobytes(), move.num_bytes)
    plan.finish()
    return plan


@st.composite
def views(draw: st.DrawFn, base: np.ndarray) -> np.ndarray:
    """Any part of *base*, in any order of dimensions."""
    index: list[Any] = []
    for size in base.shape:
        first = draw(st.integers(0, size - 1))
        last = draw(st.integers(first, size))
        step = draw(st.sampled_from([1, 1, 2]))
        part = slice(first, last, step)
        index.append(part)
    place: Any = (*index, ...)  # which gives an array also without dimensions
    view = base[place]
    if draw(st.booleans()) and view.ndim:
        view = view[::-1]
    turned: np.ndarray = view.transpose(draw(st.permutations(range(view.ndim))))
    return turned


@st.composite
def trees(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Arrays that share a few allocations."""
    found, number = {}, 0
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(sizes)
        dtype = draw(st.sampled_from(["float32", "int16", ">f8", "bool"]))
        base = np.random.default_rng(number).integers(0, 2 if dtype == "bool" else 1000, shape).astype(dtype)
        for _ in range(draw(st.integers(1, 4))):
            found[f"k{number}"] = draw(views(base))
            number += 1
    return found


@given(trees(), st.data())
@settings(max_examples=150)
def test_every_element_arrives_in_any_other_layout(tree: dict[str, np.ndarray], data: st.DataObject) -> None:
    targets = {}
    for key, value in tree.items():
        order = data.draw(st.permutations(range(value.ndim)))
        base = np.zeros([2 * value.shape[dim] for dim in order], value.dtype)
        place: Any = (*(slice(0, value.shape[dim]) for dim in order), ...)
        view = base[place]
        targets[key] = view.transpose(np.argsort(order)) if value.ndim else view
    read([copied(tree)], targets)
    for key, value in tree.items():
        assert (targets[key] == value).all() and targets[key].base is not None
        around: Any = targets[key]
        while around.base is not None:
            around = around.base
        assert np.count_nonzero(around) == np.count_nonzero(targets[key])  # nothing beside it was written


@given(trees())
@settings(max_examples=60)
def test_memory_that_is_shared_is_copied_once(tree: dict[str, np.ndarray]) -> None:
    leaves = leaves_of(tree)
    ranges = arrange(leaves).ranges
    assert len(ranges) <= 3
    layout, blocks = copied(tree)
    assert sum(region.num_bytes for region in layout.regions) == layout.num_bytes == sum(r.num_bytes for r in ranges)
    assert all(len(block) >= layout.num_bytes for block in blocks)
    for first, second in itertools.pairwise(tree):
        shared = np.may_share_memory(tree[first], tree[second])
        if shared and tree[first].size and tree[second].size:
            assert layout.entries[first].region == layout.entries[second].region


@given(st.data(), sizes.filter(bool), st.integers(0, 7))
@settings(max_examples=100)
def test_shards_give_any_other_box(data: st.DataObject, shape: tuple[int, ...], turn: int) -> None:
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    dim = data.draw(st.integers(0, len(shape) - 1))
    cuts = sorted({0, shape[dim], *data.draw(st.lists(st.integers(0, shape[dim]), max_size=3))})
    parts = []
    for first, last in itertools.pairwise(cuts):
        place = tuple(slice(first, last) if one == dim else slice(None) for one in range(len(shape)))
        offsets = [first if one == dim else 0 for one in range(len(shape))]
        parts.append(copied({"w": Shard(np.array(whole[place]), shape, offsets)}))
    parts.append(parts[0])  # a replica
    begins = [data.draw(st.integers(0, size - 1)) for size in shape]
    ends = [data.draw(st.integers(begin + 1, size)) for begin, size in zip(begins, shape, strict=True)]
    place = tuple(map(slice, begins, ends))
    here = np.full_like(whole[place], -1)
    read(parts, {"w": Shard(here, shape, begins)}, turn)
    assert (here == whole[place]).all()


@given(sizes, st.data())
def test_what_is_left_of_a_box_is_the_rest(shape: tuple[int, ...], data: st.DataObject) -> None:
    def box() -> Box:
        begins = [data.draw(st.integers(0, size - 1)) for size in shape]
        return Box(
            tuple(begins),
            tuple(data.draw(st.integers(1, size - begin)) for size, begin in zip(shape, begins, strict=True)),
        )

    one, other = box(), box()
    count = np.zeros(shape, int)
    for part in one.without(other):
        count[tuple(slice(o, o + s) for o, s in zip(part.offsets, part.sizes, strict=True))] += 1
    expected = np.zeros(shape, int)
    expected[tuple(slice(o, o + s) for o, s in zip(one.offsets, one.sizes, strict=True))] = 1
    expected[tuple(slice(o, o + s) for o, s in zip(other.offsets, other.sizes, strict=True))] = 0
    assert (count == expected).all()


def test_many_small_pieces_are_read_with_what_lies_between() -> None:
    rows, columns = 4000, 4
    whole = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    here = np.zeros((rows, 1))
    plan = read([copied({"w": whole})], {"w": Shard(here, (rows, columns), (0, 2))})
    assert (here[:, 0] == whole[:, 2]).all() and len(plan.moves) == 1
    wide = Strides(0, (2, 10), (10 * PIECE_COST_BYTES, PIECE_COST_BYTES), PIECE_COST_BYTES)
    assert cheapest_runs(wide, wide) == [(0, 0, 20 * PIECE_COST_BYTES)]
    apart = Strides(0, (2,), (10 * PIECE_COST_BYTES,), PIECE_COST_BYTES)
    target = Strides(7, (2,), (PIECE_COST_BYTES,), PIECE_COST_BYTES)
    assert cheapest_runs(apart, target) == [
        (0, 7, PIECE_COST_BYTES),
        (10 * PIECE_COST_BYTES, 7 + PIECE_COST_BYTES, PIECE_COST_BYTES),
    ]
    assert dense_strides((2, 3), 4) == (12, 4)


def test_elements_are_converted_at_their_owner() -> None:
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tree = {"w": weight, "head": weight, "t": weight.t(), "row": weight[1], "n": torch.arange(3), "half": weight.half()}
    layout, blocks = copied(tree, "bfloat16")
    targets = {key: torch.zeros(value.shape, dtype=torch.bfloat16) for key, value in tree.items() if key != "n"}
    targets["n"] = torch.zeros(3, dtype=torch.int64)
    read([(layout, blocks)], targets)
    assert all(torch.equal(targets[key], value.to(targets[key].dtype)) for key, value in tree.items())
    assert layout.num_bytes == 12 * 2 + 12 * 2 + 3 * 8


@pytest.mark.parametrize(
    ("make", "dtype", "error", "text"),
    [
        (lambda w: {"a": w, "b": w.view(torch.int32)}, "bfloat16", ValueError, "'b' and 'a' share memory"),
        (lambda w: {"a": w.numpy()}, "bfloat16", TypeError, "NumPy has no elements of bfloat16"),
        (lambda w: {"a": w}, "float99", TypeError, "torch has no elements of float99"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    make: Callable[[torch.Tensor], dict[str, Any]], dtype: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        copied(make(torch.ones(4)), dtype)


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (np.zeros(4, np.float32), TypeError, "'w' has elements of float32 here, and of float64 in the state"),
        (np.zeros(5), ValueError, r"'w' has shape \(5,\) here, and \(4,\) in the state"),
        (np.broadcast_to(np.zeros(1), 4), ValueError, "'w' is read-only here"),
        (torch.zeros(1, dtype=torch.float64).expand(4), ValueError, "several of its elements are one in memory"),
        (Shard(np.zeros(3), (5,), (2,)), ValueError, r"'w' has shape \(5,\) here"),
    ],
)
def test_targets_that_do_not_fit_are_named(target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read([copied({"w": np.arange(4.0)})], {"w": target})


def test_memory_that_is_shared_only_here_is_refused() -> None:
    here = np.zeros(4)
    with pytest.raises(ValueError, match="'a' and 'b' share memory here, but not in the state"):
        read([copied({"a": np.arange(4.0), "b": np.arange(4.0)})], {"a": here, "b": here})
    tied = np.arange(4.0)
    read([copied({"a": tied, "b": tied})], {"a": here, "b": here})
    assert (here == tied).all()


def test_elements_that_nobody_has_are_named() -> None:
    part = copied({"w": Shard(np.zeros((2, 3)), (4, 3), (0, 0))})
    with pytest.raises(ValueError, match=r"none of the 1 states has the elements of 'w' from \(2, 0\) on, \(2, 3\)"):
        read([part], {"w": np.zeros((4, 3))})


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (torch.zeros(3, device="meta"), TypeError, "'w'.*without memory"),
        (torch.eye(3).to_sparse(), TypeError, "'w'.*to_dense"),
        (Shard(np.array([object()]), (1,), (0,)), TypeError, "'w'.*must be a NumPy array or a torch tensor"),
        (np.ma.masked_array([1.0, 2.0], mask=[False, True]), TypeError, "'w'.*is a masked array, .*getmaskarray"),
        (np.zeros(2, [("a", "f8")]).view(np.recarray), TypeError, "'w'.*is a recarray: put plain arrays"),
    ],
)
def test_tensors_without_plain_memory_are_refused(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        look_at_leaf("tree['w']", value)
    assert look_at_leaf("tree['w']", "text") is None and look_at_leaf("tree['w']", np.array([object()])) is None


def test_shards_lie_within_the_whole() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\) at \(3, 0\) does not lie within an array of shape \(4, 3\)"):
        Shard(np.zeros((2, 3)), (4, 3), (3, 0))
    with pytest.raises(TypeError, match="give an array"):
        Shard([1, 2], (2,), (0,))
    with pytest.raises(TypeError, match="offsets is 0"):
        Shard(np.zeros(2), (2,), 0)  # type: ignore[arg-type]


def test_neighbours_are_registered_together() -> None:
    memory = np.zeros(10_000, np.uint8)
    parts = [np.frombuffer(memory[first : first + 1000].data, np.uint8) for first in (0, 1064, 2200, 2100)]
    ranges = arrange(leaves_of({str(index): part for index, part in enumerate(parts)})).ranges
    assert [one.num_bytes for one in ranges] == [1000, 1000, 1100]
    assert [one.num_bytes for one in join_ranges(ranges)[0]] == [3200]


def test_a_layout_is_small() -> None:
    tree = {f"layers.{index}.weight": np.zeros((4, 4)) for index in range(1300)}
    layout, _blocks = copied(tree)
    root = Root(2, 100)
    packed = root.pack(layout, pack_places(layout.entries, layout.regions))
    assert len(packed) < 200_000
    assert Root.parse(packed) == (root, layout)


def test_keys_are_chosen_by_name_or_container() -> None:
    known = ["a.0", "a.1.x", "ab", "b"]
    assert selected_keys(known, ["b", "a"]) == ["a.0", "a.1.x", "b"]
    assert selected_keys(known, ["a.1"]) == ["a.1.x"]
    with pytest.raises(ValueError, match=r"the state has no 'c'; it has 'a\.0', 'a\.1\.x', 'ab', 'b'"):
        selected_keys(known, ["c"])
