"""Keys of values in nested containers, and containers that are rebuilt around other values."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.rdma.trees.tree import flatten, join_trees, named_leaves, replace_leaves, set_values


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Layer:
    weight: Any
    bias: Any = None


@dataclass(frozen=True, slots=True)
class Fixed:
    weight: Any


def test_keys_lead_to_values() -> None:
    tree = {"a": [1, (2, Pair(3, 4))], "layer": Layer(5), 7: Fixed(6), "none": {}}
    assert named_leaves(tree) == {
        "a.0": 1,
        "a.1.0": 2,
        "a.1.1.first": 3,
        "a.1.1.second": 4,
        "layer.weight": 5,
        "layer.bias": None,
        "7.weight": 6,
    }
    assert named_leaves(3) == {"": 3}


def test_containers_keep_their_types_and_the_old_ones_their_values() -> None:
    ordered = OrderedDict(b=1, a=2)
    ordered._metadata = {"version": 1}  # type: ignore[attr-defined]  # as torch's state_dict has it
    tree: list[Any] = [ordered, defaultdict(int, x=3), Pair(4, 5), Layer(6), Fixed(7)]
    new = replace_leaves(tree, lambda key, value: value and f"{key}={value}")
    assert new == [
        OrderedDict(b="0.b=1", a="0.a=2"),
        {"x": "1.x=3"},
        Pair("2.first=4", "2.second=5"),
        Layer("3.weight=6"),
        Fixed("4.weight=7"),
    ]
    assert [type(part) for part in new] == [type(part) for part in tree]
    assert new[0]._metadata == {"version": 1} and new[1]["y"] == 0 and tree[2] == Pair(4, 5) and tree[3] == Layer(6)


def test_containers_that_do_not_change_are_the_same() -> None:
    tree = {"shape": torch.Size((2, 3)), "x": 1}
    new = replace_leaves(tree, lambda key, value: 5 if key == "x" else value)
    assert new["x"] == 5 and new["shape"] is tree["shape"]


def test_trees_of_equal_containers_are_flattened_to_equal_ones() -> None:
    tree = {"a": [1, (2,)], "b": {}, "c": OrderedDict(x=3)}
    flat = flatten(tree)
    assert flat is not None and flat[0] == list(named_leaves(tree).values()) == [1, 2, 3]
    same = flatten({"a": [7, (8,)], "b": {}, "c": OrderedDict(x=9)})
    assert same is not None and same[1] == flat[1]
    other = OrderedDict(x=3)
    other._metadata = {"version": 2}  # type: ignore[attr-defined]
    for differs in (
        {"a": [1, [2]], "b": {}, "c": OrderedDict(x=3)},
        {"b": {}, "a": [1, (2,)], "c": OrderedDict(x=3)},
        {"a": [1, (2,)], "b": {}, "c": {"x": 3}},
        {"a": [1, (2,)], "b": {}, "c": other},
        {"a": [(2,), 1], "b": {}, "c": OrderedDict(x=3)},
    ):
        found = flatten(differs)
        assert found is not None and found[1] != flat[1]


def test_other_containers_are_not_flattened() -> None:
    circle: list[Any] = []
    circle.append(circle)
    secret = OrderedDict(x=1)
    secret.lock = threading.Lock()  # type: ignore[attr-defined]
    for tree in ({1: 2}, {"a": Pair(1, 2)}, [Layer(1)], 5, circle, {"a": torch.Size((2, 3))}, secret):
        assert flatten(tree) is None


def test_equal_keys_and_circles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two values of the tree have the key 'a\.b'"):
        named_leaves({"a": {"b": 1}, "a.b": 2})
    circle: list[Any] = [1]
    circle.append({"x": circle})
    with pytest.raises(ValueError, match=r"contains itself at '1\.x'"):
        named_leaves(circle)


def test_values_are_set_where_containers_can_change() -> None:
    tree = {"a": [1, 2], "pair": Pair(3, {"x": 4}), "layer": Layer(5), "fixed": Fixed(6)}
    set_values(tree, {"a.1": 20, "pair.first": 30, "pair.second.x": 40, "layer.weight": 50, "fixed.weight": 60})
    assert tree == {"a": [1, 20], "pair": Pair(3, {"x": 40}), "layer": Layer(50), "fixed": Fixed(6)}


def test_trees_are_joined_by_their_dicts() -> None:
    joined = join_trees({"layers": {"0": 1}, "step": 3}, {"layers": {"1": 2}, "step": 4, "rank": 1})
    assert joined == {"layers": {"0": 1, "1": 2}, "step": 3, "rank": 1}
