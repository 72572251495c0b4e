"""Results that are written into arrays of the caller: all of them, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monarch_hpc.core.shape import Extent
from monarch_hpc.mesh.calls.landing import Landing

MESH = Extent(("hosts", "gpus"), (2, 3))


def test_one_result_lands_in_its_place() -> None:
    out = {"a": np.zeros((2, 2)), "b": [np.zeros(3, np.int32), np.array(0.0)]}
    Landing(out).check()
    value = {"b": (np.arange(3, dtype=np.int32), np.float64(7)), "a": np.ones((2, 2))}
    assert Landing(out).take(value, "actor") is out
    assert (out["a"] == 1).all() and list(out["b"][0]) == [0, 1, 2] and out["b"][1] == 7


def test_each_rank_lands_at_its_coordinates() -> None:
    out = np.zeros((2, 3, 4))
    Landing(out).check_mesh(MESH)
    parts = Landing(out).take_all([np.full(4, float(rank)) for rank in range(6)], MESH, set())
    assert (out == np.arange(6.0).reshape(2, 3, 1)).all()
    parts[5][0] = 9
    assert out[1, 2, 0] == 9
    single = np.zeros((2, 3))
    assert Landing(single).take_all([np.float64(rank) for rank in range(6)], MESH, set())[4] == 4 and single[1, 1] == 4


def test_ranks_that_failed_leave_their_place_alone() -> None:
    out, error = np.full((2, 3, 1), -1.0), ValueError("failed")
    values: list[Any] = [np.zeros(1)] * 6
    values[2] = error
    parts = Landing(out).take_all(values, MESH, {2})
    assert parts[2] is error and out[0, 2, 0] == -1 and (out == 0).sum() == 5


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.zeros(3), "out is an array of float64 and shape (4,), the result an array of float64 and shape (3,)"),
        (np.zeros(4, np.float32), "the result an array of float32 and shape (4,)"),
        ([0.0] * 4, "out is an array of float64 and shape (4,), the result [0.0, 0.0, 0.0, 0.0], a list"),
        (None, "the result None"),
    ],
)
def test_nothing_is_written_if_one_does_not_fit(bad: Any, text: str) -> None:
    out = np.full((2, 3, 4), -1.0)
    values = [*[np.zeros(4)] * 5, bad]
    with pytest.raises(ValueError, match="nothing was written") as raised:
        Landing(out).take_all(values, MESH, set())
    assert text in str(raised.value) and "'hosts': 1/2, 'gpus': 2/3" in str(raised.value)
    assert (out == -1).all()


@pytest.mark.parametrize(
    ("out", "value", "text"),
    [
        ({"a": np.zeros(1)}, {"b": np.zeros(1)}, "a dict with keys ['a']"),
        ({"a": np.zeros(1)}, np.zeros(1), "a dict with keys ['a']"),
        ([np.zeros(1)], [np.zeros(1)] * 2, "out has 1 parts"),
        ({"a": [np.zeros(1), np.zeros(2)]}, {"a": [np.ones(1), np.ones(1)]}, "out['a'][1] is an array"),
    ],
)
def test_trees_must_be_alike(out: Any, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match="actor does not fit") as raised:
        Landing(out).take(value, "actor")
    assert text in str(raised.value)
    assert not any(np.asarray(leaf).any() for leaf in (out["a"] if isinstance(out, dict) else out))


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        ([1.0, 2.0], TypeError, r"out\[0\] must be an array or a tensor"),
        ({}, ValueError, "no array or tensor"),
        (np.broadcast_to(np.zeros(1), (5,)), ValueError, "out is read-only"),
        ("text", TypeError, "not 'text', a str"),
    ],
)
def test_what_cannot_be_written_is_refused(out: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Landing(out).check()


def test_arrays_for_a_mesh_begin_with_its_dimensions() -> None:
    for out in (np.zeros((3, 2, 4)), np.zeros(2)):
        with pytest.raises(ValueError, match=r"must begin with \(2, 3\)"):
            Landing({"a": out}).check_mesh(MESH)
