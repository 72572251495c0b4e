"""Objects, modules and process groups on the ranks, and the functions that take them, on two procs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn

from monarch_hpc import ProcMesh
from monarch_hpc.tensor import (
    OpaqueModule,
    OpaqueObject,
    OpaqueRef,
    RemoteProcessGroup,
    coalescing,
    fetch_shard,
    inspect,
    no_mesh,
    opaque_method,
    reduce,
    reduce_,
    remote,
    slice_mesh,
    to_mesh,
)

_GET_S = 60.0


def both(tensor: Any) -> list[Any]:
    """The values of both ranks."""
    return [fetch_shard(tensor, dp=rank).get(_GET_S) for rank in range(2)]


def engine_of() -> Any:
    """The engine of the active mesh."""
    x: Any = torch.ones(1)
    return x._h.view.engine


class Counter:
    """Counts the tensors that it has seen."""

    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count

    def seen(self) -> int:
        return self.count


class Kept(Counter):
    """A counter of one test."""


class RemoteCounter(OpaqueObject):
    """A counter on each rank."""

    @opaque_method
    def add(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1


@remote(propagate=lambda x: (OpaqueRef(None), x.sum()))
def loader(x: torch.Tensor) -> Any:
    """An iterator over rows, and their sum."""
    return OpaqueRef(iter(x.unbind())), x.sum()


@remote(propagate=lambda _rows: torch.zeros(2))
def following(rows: OpaqueRef) -> torch.Tensor:
    """The next row."""
    found: torch.Tensor = next(rows.value)
    return found


@remote
def named(start: int) -> dict[str, Any]:
    """A result whose structure the ranks tell."""
    return {"counter": OpaqueRef(Counter(start)), "start": torch.tensor(start), "name": "counter"}


@pytest.fixture
def active(procs: ProcMesh) -> Iterator[ProcMesh]:
    """The procs, active."""
    with procs.activate():
        yield procs


def test_references_name_objects_of_the_ranks(active: ProcMesh) -> None:
    x: Any = torch.arange(6.0).reshape(3, 2) + active.rank("dp") * 10
    rows, total = loader(x)
    assert repr(rows) == "<OpaqueRef on the ranks>" and total.shape == ()
    assert [value.tolist() for value in both(following(rows))] == [[0.0, 1.0], [10.0, 11.0]]
    assert [value.tolist() for value in both(following(rows))] == [[2.0, 3.0], [12.0, 13.0]]
    with pytest.raises(TypeError, match="on the ranks"):
        _ = rows.value
    with pytest.raises(TypeError, match="made in the program"):
        following(OpaqueRef(3))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(rows)
    found = named(4)
    assert found["name"] == "counter" and isinstance(found["counter"], OpaqueRef)
    assert isinstance(named(4)["counter"], OpaqueRef)  # of the remembered structure
    following(rows)
    with pytest.raises(StopIteration):
        inspect(following(rows))


def test_objects_are_dropped_with_their_last_reference(active: ProcMesh) -> None:
    @remote(propagate="inspect")
    def kept() -> torch.Tensor:
        import gc

        gc.collect()
        return torch.tensor(sum(type(one).__name__ == "Kept" for one in gc.get_objects()))

    before = int(inspect(kept()))
    held: Any = [OpaqueObject(Kept, 1) for _ in range(3)]
    assert int(inspect(kept())) == before + 3
    held = held[:1]
    engine_of().flush()
    assert int(inspect(kept())) == before + 1


def test_methods_of_objects_are_called_in_turn(active: ProcMesh) -> None:
    counter = RemoteCounter(f"{__name__}.Counter", 10)
    x: Any = torch.zeros(2)
    first, second = counter.add(x), counter.add(x)
    assert (inspect(first).tolist(), inspect(second, dp=1).tolist()) == ([11.0] * 2, [12.0] * 2)
    assert counter.call_method_on_shard_and_fetch("seen").get(_GET_S) == 12
    assert inspect(counter.call_method("add", None, x)).tolist() == [13.0] * 2
    again = RemoteCounter(counter)
    assert inspect(again.add(x)).tolist() == [14.0] * 2


@pytest.mark.parametrize("propagator", [None, lambda _self, x: x.new_empty(x.shape[0], 4)], ids=["asked", "stated"])
def test_modules_of_each_rank_get_gradients(active: ProcMesh, propagator: Any) -> None:
    linear = OpaqueModule("torch.nn.Linear", 3, 4)
    params = linear.parameters()
    assert [tuple(param.shape) for param in params] == [(4, 3), (4,)] and params is linear.parameters()
    with torch.no_grad():
        for param in params:
            param.fill_(0.5)
    x: Any = (torch.ones(5, 3) + active.rank("dp")).requires_grad_()
    optimizer = torch.optim.SGD(params, lr=0.1)
    for _ in range(2):
        loss: Any = linear(x * 1, propagator=propagator).square().sum()
        optimizer.zero_grad()
        loss.backward()
        for param in params:
            reduce_(param.grad, "dp", "avg")
        optimizer.step()
    with no_mesh.activate():
        alone = nn.Linear(3, 4)
        own = torch.optim.SGD(alone.parameters(), lr=0.1)
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter.fill_(0.5)
        for _ in range(2):
            total: Any = sum(alone(torch.ones(5, 3) + rank).square().sum() / 2 for rank in range(2))
            own.zero_grad()
            total.backward()
            own.step()
        for param, parameter in zip(params, alone.parameters(), strict=True):
            assert torch.allclose(inspect(param, dp=1), parameter)
    assert x.grad is not None and inspect(x.grad).shape == (5, 3)
    with torch.no_grad():
        assert not linear(x, propagator=propagator).requires_grad


def test_functions_on_the_ranks_use_process_groups(active: ProcMesh) -> None:
    @remote(propagate=lambda x, group: (x * 1, torch.zeros((), dtype=torch.int64)))
    def gathered(x: torch.Tensor, group: Any) -> Any:
        dist.all_reduce(x, group=group)
        dist.broadcast(x, src=dist.get_world_size(group) - 1, group=group)
        return x, torch.tensor(dist.get_rank(group) + 10 * dist.get_world_size(group))

    group = active.process_group("dp")
    assert isinstance(group, RemoteProcessGroup) and group.size() == 2 and "dp" in repr(group)
    for _ in range(2):
        x, place = gathered(torch.ones(2) + active.rank("dp"), group)
        assert [value.tolist() for value in both(x)] == [[3.0, 3.0]] * 2
        assert [int(value) for value in both(place)] == [20, 21]
    one = active.slice(dp=slice(1, 2))
    with one.activate():
        with pytest.raises(ValueError, match="other ranks"):
            gathered(torch.ones(2), group)
        x, place = gathered(torch.ones(2), RemoteProcessGroup(("dp",), one))
        assert inspect(x).tolist() == [1.0, 1.0] and int(inspect(place)) == 10
    with pytest.raises(KeyError):
        active.process_group("tp")
    with pytest.raises(ValueError, match="each once"):
        active.process_group(("dp", "dp"))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(group)


def test_a_world_ends_with_its_call(active: ProcMesh) -> None:
    @remote(propagate="inspect")
    def has_group() -> torch.Tensor:
        return torch.tensor(dist.is_initialized())

    assert [bool(value) for value in both(has_group())] == [False, False]


def test_functions_take_trees(active: ProcMesh) -> None:
    tree: Any = {"a": [torch.ones(2), 3], "b": torch.ones(1) * active.rank("dp")}
    first, second = active.slice(dp=0), active.slice(dp=1)
    moved = to_mesh(slice_mesh(tree, dp=0), second)
    assert inspect(moved)["a"][0].tolist() == [1.0, 1.0] and moved["a"][1] == 3
    assert inspect(reduce(tree, "dp"))["b"].tolist() == [1.0]
    reduce_(tree, "dp", "max")
    assert inspect(tree)["b"].tolist() == [1.0]
    assert moved["b"].mesh == second.region != first.region


def test_operations_in_a_block_travel_together(active: ProcMesh) -> None:
    engine = engine_of()
    engine.wait()
    x: Any = torch.ones(2)
    engine.wait()
    sent: list[int] = []
    taken: list[Any] = []
    engine.site_log = taken
    try:
        with coalescing():
            for _ in range(100):
                x = x + 1
            y = loader(torch.ones(1, 2))[1]  # an object does not end the frame
            x = x * 2
            sent.append(sum(bool(sites) for _, sites in taken))  # others free values
        engine.wait()
        sent.append(sum(bool(sites) for _, sites in taken))  # others free values
    finally:
        engine.site_log = None
    assert sent == [0, 1] and inspect(x).tolist() == [202.0, 202.0] and float(inspect(y)) == 2.0
    with coalescing():
        assert inspect(x + 1).tolist() == [203.0, 203.0]
