"""Values of users' types travel whole, in both directions, whatever their size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, endpoint
from monarch_hpc.config.load import load
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_LARGE_BYTES = 70 << 20  # more than the body of a frame may have


class Echo(Actor):
    """Returns what it gets, with the type that it saw."""

    @endpoint
    def echo(self, value: object) -> tuple[str, object]:
        return type(value).__name__, value


@pytest.fixture(scope="module")
def echo() -> Iterator[ActorMesh[Echo]]:
    with controlled(load().config, num_hosts=1) as hosts:
        procs = hosts.spawn_procs()
        settle(procs)
        yield procs.spawn("echo", Echo)


@pytest.mark.parametrize(
    "value",
    [
        b"x" * _LARGE_BYTES,
        bytearray(_LARGE_BYTES),
        "x" * (_LARGE_BYTES // 2) + "\xe9" * (_LARGE_BYTES // 4),
        {"nested": [b"x" * _LARGE_BYTES, ("y" * _LARGE_BYTES, 3)]},
        list(range(1 << 40, (1 << 40) + (8 << 20))),
    ],
    ids=["bytes", "bytearray", "str", "nested", "list of numbers"],
)
def test_a_value_larger_than_a_body_comes_back_equal(echo: ActorMesh[Echo], value: object) -> None:
    name, returned = echo.echo.call_one(value).get(_PATIENCE_S)
    assert name == type(value).__name__
    assert returned == value  # not in a message of pytest, which would show it
    assert type(returned) is type(value)


def test_a_strided_array_comes_back_equal(echo: ActorMesh[Echo]) -> None:
    array = np.arange(_LARGE_BYTES // 4, dtype=np.int64).reshape(-1, 2)[:, 0]
    _, returned = echo.echo.call_one(array).get(_PATIENCE_S)
    np.testing.assert_array_equal(returned, array)


def test_a_state_dict_comes_back_equal(echo: ActorMesh[Echo]) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.arange(_LARGE_BYTES // 4, dtype=torch.float32).reshape(-1, 1024)
    state = {"a.weight": weight, "tied": weight, "row": weight[3], "b.bias": torch.ones(7, dtype=torch.bfloat16)}
    name, returned = echo.echo.call_one(state).get(_PATIENCE_S)
    assert name == "dict" and isinstance(returned, dict)
    for key, tensor in state.items():
        assert torch.equal(returned[key], tensor) and returned[key].dtype == tensor.dtype
    returned["tied"][0, 0] = 5.0
    assert returned["a.weight"][0, 0] == 5.0, "aliases stay aliases"
