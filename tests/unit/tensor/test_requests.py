"""Requests of calls: those of each step are loaded once, and no call sees what another has done to its arguments."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from monarch_hpc.tensor.stream.records import TRAINING_CALLS, CallRequest, Ref
from monarch_hpc.tensor.worker.requests import Requests
from monarch_hpc.tensor.worker.values import Values
from monarch_hpc.wire.serializer import dumps


def _request(function: Any, *args: Any, **kwargs: Any) -> CallRequest:
    packed, buffers = dumps((function, args, kwargs))
    return CallRequest("a call", packed, tuple(buffers), 0, grad=False)


@pytest.fixture
def values() -> Values:
    """Two values."""
    found = Values()
    found.update({4: "four", 5: "five"})
    return found


def test_the_step_of_an_optimizer_is_loaded_once(values: Values) -> None:
    requests, request = Requests(), _request(f"{TRAINING_CALLS}optimizers.step", Ref(4))
    first = requests.load(request)
    assert first.is_flat and first.is_own and not first.may_write
    assert first.with_values(values, [4]) == (("four",), {})
    assert requests.load(request) is first


def test_arguments_are_in_containers_of_their_own(values: Values) -> None:
    requests, request = Requests(), _request(f"{TRAINING_CALLS}optimizers.step", Ref(4), [(0, "lr", 0.5), Ref(5)])
    (_, changes), _ = requests.load(request).with_values(values, [4, 5])
    assert changes == [(0, "lr", 0.5), "five"]
    changes.clear()
    assert requests.load(request).with_values(values, [4, 5])[0][1] == [(0, "lr", 0.5), "five"]


def test_functions_of_users_are_loaded_each_time(values: Values) -> None:
    requests, request = Requests(), _request(len, Ref(-1))
    found = requests.load(request)
    assert found.may_write and not found.is_own
    assert found.with_values(values, [5]) == (("five",), {})
    assert requests.load(request) is not found


def test_numbers_of_kept_requests_are_bounded(values: Values) -> None:
    requests = Requests()
    for number in range(1000):
        assert requests.load(_request(f"{TRAINING_CALLS}optimizers.change", number)).with_values(values, [])[0] == (
            number,
        )
    assert len(requests._kept) <= 256
