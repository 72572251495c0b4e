"""Values of users' types travel whole, in both directions, whatever their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, endpoint
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0
_LARGE_BYTES = 70 << 20  # more than the body of a frame may have


class Echo(Actor):
    """Returns what it gets, with the type that it saw."""

    @endpoint
    def echo(self, value: object) -> tuple[str, object]:
        return type(value).__name__, value

    @endpoint
    def plain(self, value: object) -> object:
        return value


@pytest.fixture(scope="module")
def echo(shared_hosts: SharedHosts) -> Iterator[ActorMesh[Echo]]:
    with shared_hosts.controlled(1) as hosts:
        procs = hosts.spawn_procs()
        settle(procs)
        yield procs.spawn("echo", Echo)


@pytest.mark.parametrize(
    "make",
    [
        # Made when needed: each process of the suite keeps the parameters of all tests.
        lambda: b"x" * _LARGE_BYTES,
        lambda: bytearray(_LARGE_BYTES),
        lambda: "x" * (_LARGE_BYTES // 2) + "\xe9" * (_LARGE_BYTES // 4),
        lambda: {"nested": [b"x" * _LARGE_BYTES, ("y" * _LARGE_BYTES, 3)]},
        lambda: list(range(1 << 40, (1 << 40) + (8 << 20))),
    ],
    ids=["bytes", "bytearray", "str", "nested", "list of numbers"],
)
def test_a_value_larger_than_a_body_comes_back_equal(echo: ActorMesh[Echo], make: Callable[[], object]) -> None:
    value = make()
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


def _tables() -> list[object]:
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"number": np.arange(100_000), "name": [f"row {row}" for row in range(100_000)]}
    return [pandas.DataFrame(columns), pyarrow.table(columns).slice(10, 1000)]


def test_tables_and_memoryviews_come_back_equal(echo: ActorMesh[Echo]) -> None:
    for table in _tables():
        _, returned = echo.echo.call_one(table).get(_PATIENCE_S)
        assert type(returned) is type(table) and returned.equals(table)  # type: ignore[attr-defined]
    view = np.arange(_LARGE_BYTES // 8).reshape(-1, 2).data[10:]
    name, returned = echo.echo.call_one(view).get(_PATIENCE_S)
    assert name == "memoryview" and isinstance(returned, memoryview)
    assert (returned.format, returned.shape) == (view.format, view.shape) and returned == view


def test_results_land_in_memory_of_the_caller(echo: ActorMesh[Echo]) -> None:
    import torch

    array, tensor = np.zeros((2, 3)), torch.zeros(5, dtype=torch.bfloat16, requires_grad=True)
    tree = {"array": array, "tensors": [tensor]}
    sent = {"array": np.ones((2, 3)), "tensors": [torch.full((5,), 2, dtype=torch.bfloat16)]}
    assert echo.plain.options(out=tree).call_one(sent).get(_PATIENCE_S) is tree
    assert (array == 1).all() and bool((tensor == 2).all()) and tensor.requires_grad
    mesh = np.zeros((1, 4))
    values = echo.plain.options(out=mesh).call(np.arange(4.0)).get(_PATIENCE_S).values()
    assert list(mesh[0]) == [0, 1, 2, 3] and values[0].base is mesh
    for wrong in (np.ones((3, 2)), np.ones((2, 3), np.float32), torch.ones(2, 3, dtype=torch.float64)):
        future = echo.plain.options(out=array).call_one(wrong)
        for _read in range(2):
            with pytest.raises(
                ValueError, match=r"result of .*echo.* does not fit, and nothing was written: out is an array"
            ):
                future.get(_PATIENCE_S)
    assert (array == 1).all()
    with pytest.raises(ValueError, match=r"must begin with \(1,\)"):
        echo.plain.options(out=array).call(1)
    for ask in (echo.plain.options(out=array).broadcast, echo.plain.options(out=array).stream):
        with pytest.raises(ValueError, match="use call, call_one or choose"):
            ask(1)
