"""Meshes whose ranks are threads of this process: programs give what they give on procs, and nothing is started."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monarch_hpc import ProcMesh
from monarch_hpc.core.machine.procfs import each_pid, read_stat
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.tensor import (
    OpaqueModule,
    RemoteOpError,
    Stream,
    coalescing,
    fetch_shard,
    grad_function,
    inspect,
    random,
    remote,
    sync,
)
from monarch_hpc.tensor.testing import local_mesh

_GET_S = 60.0


def children() -> list[int]:
    """The processes that this one has started."""
    return [pid for pid in each_pid() if (found := read_stat(pid)) and found.parent == os.getpid()]


@pytest.fixture
def local() -> Iterator[Any]:
    """Four ranks."""
    with local_mesh(dp=2, tp=2) as mesh:
        yield mesh


def test_a_program_gives_what_it_gives_on_procs(procs: ProcMesh) -> None:
    def program(mesh: Any) -> list[Any]:
        with mesh.activate():
            random.manual_seed(3)
            model: Any = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            x: Any = torch.randn(8, 4) + mesh.rank("dp")
            for _ in range(3):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                for parameter in model.parameters():
                    grad: Any = parameter.grad
                    grad.reduce_("dp", "avg")
                optimizer.step()
            moved = x.slice_mesh(dp=0).to_mesh(mesh.slice(dp=1))
            stacked = [x.reduce("dp", "stack"), x[:2].reduce("dp", "max", scatter=True)]
            weights = list(model.parameters())
        found = [fetch_shard([loss, *weights, *stacked], dp=rank).get(_GET_S) for rank in range(2)]
        return [*found[0], *found[1], inspect(moved)]

    with local_mesh({"dp": 2}) as mesh:
        local = program(mesh)
    assert all(torch.equal(one, other) for one, other in zip(local, program(procs), strict=True))


def test_nothing_is_started_and_threads_end() -> None:
    before, threads = children(), threading.active_count()
    with local_mesh(dp=2) as mesh:
        with mesh.activate():
            assert inspect(torch.ones(2)).tolist() == [1.0, 1.0]
        assert children() == before
        with pytest.raises(TypeError, match="open_local"):
            mesh.spawn("actor", object)
        with pytest.raises(TypeError, match="open_local"):
            _ = mesh.slice(dp=0).procs
        assert "dp" in mesh._repr_html_() and repr(mesh) == "<LocalMesh {dp: 2}>"
    with pytest.raises(Exception, match="stopped"), mesh.activate():
        inspect(torch.ones(2))
    assert threading.active_count() <= threads
    with pytest.raises(ValueError, match="size of dp"), local_mesh(dp=0):
        pass


def test_sharded_tensors_and_modules_are_those_of_one_process(local: Any) -> None:
    mesh = Mesh(procs=local)
    torch.manual_seed(0)
    t = torch.randn(7, 4)
    alone = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    plan: Any = {"0.weight": ["tp", None], "0.bias": ["tp"], "2.weight": [None, "tp"]}
    model = module_to_mesh(alone, mesh, plan=plan)
    pairs: list[Any] = [(alone, t, torch.optim.AdamW(alone.parameters(), lr=1e-2))]
    dt: Any = distribute(t, mesh, ["dp", None])
    pairs.append((model, dt, torch.optim.AdamW(model.parameters(), lr=1e-2)))
    losses: list[list[float]] = [[], []]
    for kept, (module, x, optimizer) in zip(losses, pairs, strict=True):
        for _ in range(3):
            loss: Any = module(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert torch.allclose((dt @ dt.T).full_tensor(), t @ t.T, atol=1e-6)
    assert dt[torch.tensor([1, 6])].full_tensor().shape == (2, 4)
    assert not dist.is_initialized()


def test_modules_on_the_ranks_have_a_world(local: Any) -> None:
    def parallelize(module: Any, mesh: Any) -> Any:
        return DistributedDataParallel(module, process_group=mesh.get_group("dp"))

    mesh = Mesh(procs=local)
    torch.manual_seed(1)
    x, alone = torch.randn(8, 4), nn.Linear(4, 2)
    model = module_to_mesh(alone, mesh, remote=True, parallelize=parallelize, out_spec=["dp"])
    optimizer: Any = RemoteOptimizer(torch.optim.SGD, model.parameters(), lr=0.1)
    own = torch.optim.SGD(alone.parameters(), lr=0.1)
    dx = distribute(x, mesh, ["dp"])
    queued: list[Any] = torch.cuda._queued_calls
    num_queued = len(queued)
    for _ in range(3):
        loss: Any = model(dx).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected = alone(x).square().mean()
        own.zero_grad()
        expected.backward()
        own.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len(queued) == num_queued  # a call leaves nothing behind for absent accelerators


def test_groups_that_modules_make_are_those_of_their_rank(local: Any) -> None:
    def parallelize(module: Any, _mesh: Any) -> Any:
        # A rank that waits for others hands over in the middle: they make groups of theirs meanwhile.
        for _ in range(3):
            summed = torch.tensor([2.0 ** dist.get_rank()])
            group = dist.new_group(list(range(4)))
            dist.all_reduce(summed, group=group)
            assert (dist.get_rank(group), summed.item()) == (dist.get_rank(), 0b1111)
        return module

    mesh = Mesh(procs=local)
    model = module_to_mesh(nn.Linear(4, 2), mesh, remote=True, parallelize=parallelize, out_spec=["dp"])
    x = distribute(torch.ones(8, 4), mesh, ["dp"])
    assert model(x).full_tensor().shape == (8, 2)


def test_names_of_this_package_work(local: Any) -> None:
    @remote(propagate=lambda x, _group: x * 1)
    def summed(x: torch.Tensor, group: Any) -> torch.Tensor:
        dist.all_reduce(x, group=group)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x, group=group)
        return parts[-1]

    @grad_function
    def average(x: Any) -> Any:
        return x.reduce("dp", "avg"), lambda gradient: gradient.reduce("dp", "avg")

    comms = Stream("comms")
    with local.activate():
        x: Any = torch.ones(2) * (local.rank("dp") + 10 * local.rank("tp"))
        assert inspect(summed(x * 1, local.process_group(("dp", "tp"))), dp=1).tolist() == [22.0, 22.0]
        lent, borrow = comms.borrow(x, mutable=True)
        lent.reduce_("tp")
        borrow.drop()
        assert inspect(x, dp=1).tolist() == [12.0, 12.0]
        linear = OpaqueModule(nn.Linear, 2, 1)
        average(linear(x)).sum().backward()
        assert inspect(linear.parameters()[0].grad).tolist() == [[10.0, 10.0]]


def test_failures_have_class_and_line_and_the_mesh_goes_on(local: Any) -> None:
    @remote(propagate=lambda x: x * 1)
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("on each rank")

    with local.activate():
        bad = fails(torch.ones(2))  # issued
        with pytest.raises(ArithmeticError, match="on each rank") as error:
            inspect(bad + 1)
        assert isinstance(error.value, RemoteOpError) and "# issued" in error.value.line
        assert inspect(torch.ones(1)).tolist() == [1.0]
    mesh = Mesh(procs=local)
    fine = mesh.ones(4)
    with pytest.raises(ZeroDivisionError):
        mesh.execute(lambda t: t / (1 // 0), fine)
    sync(local)


def test_the_programs_random_numbers_and_its_own_tensors_stay(local: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    own = torch.ones(2)
    with local.activate():
        x: Any = torch.rand(3)
        total = x[:2] + own
        total.zero_()
        inspect(total)
    assert torch.equal(torch.rand(3), expected) and own.tolist() == [1.0, 1.0]
    with local.activate():
        y: Any = torch.zeros(2)
        y += local.rank("dp")
        assert [inspect(y, dp=rank).tolist() for rank in range(2)] == [[0.0, 0.0], [1.0, 1.0]]


def test_steps_are_captured_and_replayed(local: Any) -> None:
    with local.activate():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)

        @local.capture  # type: ignore[untyped-decorator]
        def step(x: Any) -> Any:
            loss = (weight * x).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        losses = [float(inspect(step(torch.ones(3)))) for _ in range(5)]
    assert step.num_replays == 2 and losses == pytest.approx([3 * 0.8 ** (2 * turn) for turn in range(5)], rel=1e-5)


def test_steps_of_sharded_tensors_are_replayed_below_dtensor(local: Any) -> None:
    mesh = Mesh(procs=local)
    weight = distribute(torch.ones(4, 4), mesh, []).requires_grad_()

    @mesh.capture
    def step(x: Any) -> Any:
        loss = (x @ weight).square().mean()
        weight.grad = None
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad * 0.01)
        return loss.detach()

    x = distribute(torch.ones(4, 4), mesh, ["dp"])
    losses = [step(x).item() for _ in range(8)]
    assert losses == pytest.approx([16 * 0.98 ** (2 * turn) for turn in range(8)], rel=1e-5)
    assert set(step.lowering().values()) == {""}


def test_what_a_mesh_that_was_stopped_has_not_sent_disturbs_no_other(procs: ProcMesh) -> None:
    """Values that the program drops later are freed by frames that nobody takes."""
    with local_mesh(dp=2) as mesh, mesh.activate():
        kept: Any = torch.ones(3) + 1
        assert inspect(kept).tolist() == [2.0] * 3
    with pytest.raises(DeviceMeshError, match="it was stopped"):
        inspect(kept)
    del kept
    with procs.activate():
        x: Any = torch.ones(2)
        with coalescing():
            x = x + 1
    assert inspect(x).tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("procs")  # the program's own threads are there before, and stay
def test_meshes_that_follow_each_other_share_nothing_that_torch_has_cached() -> None:
    """Threads of later ranks have the ids of earlier ones, of other ranks; uneven shards depend on the rank."""
    logits, target = torch.arange(28.0).reshape(7, 4).sin(), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    for _ in range(4):
        with local_mesh(dp=2, tp=2) as procs:
            mesh = Mesh(procs=procs)
            for spec in (["dp"], [("dp", "tp")], ["tp"]):
                given = distribute(logits, mesh, spec)
                loss: Any = nn.functional.cross_entropy(given, distribute(target, mesh, spec))
                assert loss.item() == pytest.approx(nn.functional.cross_entropy(logits, target).item())
                assert given.full_tensor().equal(logits)


@pytest.mark.usefixtures("procs")  # the program's own threads are there before, and stay
def test_a_forked_child_has_no_ranks_and_is_told(local: Any) -> None:
    """It has none of their threads, and would wait for them for ever; its parent goes on."""
    with local.activate():
        x: Any = torch.ones(3) + local.rank("dp")
        inspect(x)
    told, say = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(int(_GET_S))
        try:
            inspect(x + 1)
        except BaseException as error:  # noqa: BLE001 the child ends here
            os.write(say, type(error).__name__.encode())
        local.stop()
        os._exit(7)
    os.close(say)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.read(told, 100) == b"ForkedError"
    os.close(told)
    with local.activate():
        assert inspect(x.reduce("dp")).tolist() == [3.0] * 3


@pytest.mark.usefixtures("procs")
def test_a_local_mesh_in_what_travels_is_named(local: Any) -> None:
    mesh = Mesh(procs=local)

    def use(t: torch.Tensor) -> torch.Tensor:
        mesh.commit()
        return t

    with local.activate(), pytest.raises(TypeError, match="cannot be sent or saved: its ranks are threads of this"):
        remote(use, propagate=lambda t: t)(torch.ones(2))
