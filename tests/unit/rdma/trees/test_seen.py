"""Trees that are seen again: arrays at the same places are found by a signature, everything else differs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.rdma.trees.seen import Lent, SeenTree, parse_structure
from monarch_hpc.rdma.trees.tree import Placeholder, named_leaves


def test_a_state_dict_is_seen_again_without_being_taken_apart() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    first, again = SeenTree(model.state_dict()), SeenTree(model.state_dict())
    assert first.signature is not None and first.signature == again.signature
    assert first.skeleton == again.skeleton is not None
    assert not again.empty and again.values == [] and "_taken" not in vars(again)
    assert list(again.leaves) == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("step", [{}, {"step": 1}], ids=["arrays alone", "another value"])
def test_a_tree_without_its_arrays_has_their_keys_and_its_containers(step: dict[str, int]) -> None:
    ordered = OrderedDict(bias=np.ones(2), weight=torch.ones(2))
    ordered.note = "kept"  # type: ignore[attr-defined]
    tree = {"layers": [ordered, (np.ones(1), {})], "a.b": np.ones(1), **step}
    seen = SeenTree(tree)
    found = parse_structure(seen.structure)
    keys = ["layers.0.bias", "layers.0.weight", "layers.1.0", "a.b"]
    assert list(seen.leaves) == keys and seen.values == list(step)
    leaves = named_leaves(found)
    assert [one.key for one in leaves.values() if isinstance(one, Placeholder)] == keys
    assert {key: leaves[key] for key in step} == step
    first, second = found["layers"]
    assert type(first) is OrderedDict and vars(first) == {"note": "kept"} and type(second) is tuple and second[1] == {}
    assert all(type(one) in (np.ndarray, torch.Tensor) for one in ordered.values())  # the tree itself is as it was


def test_two_arrays_of_one_key_are_refused() -> None:
    seen = SeenTree({"a.b": np.ones(1), "a": {"b": np.ones(1)}})
    with pytest.raises(ValueError, match=r"two values of the tree have the key 'a\.b'"):
        _ = seen.leaves


_rows = np.arange(40.0).reshape(4, 10)
_weight = torch.arange(12.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree | {"rows": _rows[1:]},
        lambda tree: tree | {"rows": _rows[:, ::2]},
        lambda tree: tree | {"rows": _rows.view(np.int64)},
        lambda tree: tree | {"rows": np.ma.asarray(_rows)},
        lambda tree: tree | {"weight": _weight.view(torch.int32)},
        lambda tree: tree | {"weight": _weight.requires_grad_(False).view(3, 4)},
        lambda tree: tree | {"weight": torch.nn.Parameter(_weight)},
        lambda tree: tree | {"weight": _weight.clone()},
        lambda tree: {"other": tree["rows"], "weight": tree["weight"]},
        lambda tree: {"weight": tree["weight"], "rows": tree["rows"]},
        lambda tree: tree | {"step": 1},
        lambda tree: list(tree.values()),
    ],
)
def test_what_differs_has_another_signature(change: Callable[[dict[str, Any]], Any]) -> None:
    tree = {"rows": _rows, "weight": _weight}
    assert SeenTree(tree).signature == SeenTree(dict(tree)).signature
    assert SeenTree(change(tree)).signature != SeenTree(tree).signature


def _freeze(tree: dict[str, Any]) -> None:
    tree["rows"].flags.writeable = False


def _move(tree: dict[str, Any]) -> None:
    tree["weight"].data = torch.zeros(12)


def _replace(tree: dict[str, Any]) -> None:
    tree["bias"] = tree["bias"].copy()


@pytest.mark.parametrize("change", [_freeze, _move, _replace])
def test_objects_that_are_lent_are_known_at_a_glance_as_long_as_nothing_changes(
    change: Callable[[dict[str, Any]], None],
) -> None:
    tree: dict[str, Any] = {
        "rows": np.arange(40.0).reshape(4, 10).copy(),
        "bias": np.ones(3),
        "weight": torch.arange(12.0),
    }
    lent = Lent.of(SeenTree(tree))
    again = SeenTree(dict(tree))
    assert again.signature is lent.signature and again.skeleton is not None
    assert Lent.of(again) is lent
    assert SeenTree({f"other {key}": value for key, value in tree.items()}).signature != lent.signature
    with pytest.raises(ValueError, match="cannot resize an array"):
        tree["rows"].resize((4000, 10), refcheck=False)  # it would leave its memory to others
    change(tree)
    changed = SeenTree(tree)
    assert changed.signature != lent.signature
    assert Lent.of(changed) is not lent


def test_references_are_values_and_a_tree_of_them_is_empty() -> None:
    seen = SeenTree({"names": np.array([object()])})
    assert seen.empty and seen.values == ["names"] and seen.skeleton is None
    assert SeenTree({}).empty and not SeenTree([np.zeros(1)]).empty and not SeenTree(np.zeros(1)).empty
