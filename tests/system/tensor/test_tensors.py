"""Mesh tensors on two procs: values, autograd, modules, optimizers, reductions, copies, remote functions, actors."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import Actor, HostMesh, ProcMesh, endpoint
from monarch_hpc.tensor import call_on_shard_and_fetch, fetch_shard, inspect, no_mesh, random, remote, show, sync
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.sharded.procs import PRELOADED

_GET_S = 60.0


def both(tensor: Any) -> list[Any]:
    """The values of both ranks."""
    return [fetch_shard(tensor, dp=rank).get(_GET_S) for rank in range(2)]


def test_each_rank_has_a_value_of_its_own(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.arange(6.0).reshape(2, 3) + procs.rank("dp") * 10
        y = x @ x.T
        assert isinstance(y, MeshTensor)
        assert (y.shape, y.dtype, y.device.type, y.ndim, len(y)) == ((2, 2), torch.float32, "cpu", 2, 2)
        assert "MeshTensor((2, 2), torch.float32" in repr(y) and f"{y}" == repr(y)
    for rank, value in enumerate(both(x)):
        expected = torch.arange(6.0).reshape(2, 3) + rank * 10
        assert torch.equal(value, expected)
        assert torch.equal(inspect(y, dp=rank), expected @ expected.T)
    named = procs.rank_tensors()
    assert [int(inspect(named["dp"], dp=rank)) for rank in range(2)] == [0, 1]
    assert inspect({"a": [x, 3]}, {"dp": 1})["a"][1] == 3


def test_values_of_the_program_are_sent_and_no_mesh_keeps_them(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    local = torch.ones(3)
    with procs.activate():
        x = torch.tensor([1.0, 2.0, 3.0])
        assert isinstance(x, MeshTensor)
        assert type(local + 1) is torch.Tensor
        total = x + local
        local += 100  # after it was sent
        with no_mesh.activate():
            assert type(torch.zeros(2)) is torch.Tensor
            inside = x * 2
        show(total, dp=1)
    assert torch.equal(inspect(total), torch.tensor([2.0, 3.0, 4.0]))
    assert torch.equal(inspect(inside, dp=1), torch.tensor([2.0, 4.0, 6.0]))
    assert "tensor([2., 3., 4.])" in capsys.readouterr().out


def test_wrong_shapes_meshes_and_reads_are_errors_at_their_line(procs: ProcMesh) -> None:
    with procs.activate():
        x: Any = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="reduction dim"):
            x @ x
        with pytest.raises(ValueError, match="different ranks"):
            x + x.slice_mesh(dp=0)
        with pytest.raises(TypeError, match="fetch_shard"):
            x.sum().item()
        with pytest.raises(TypeError, match="fetch_shard"):
            bool(x.sum() > 0)
        with pytest.raises(NotImplementedError, match="propagate"):
            x[x > 0]
        with pytest.raises(TypeError, match=r"tensor\.random"):
            torch.rand(2, generator=torch.Generator())
        with pytest.raises(RuntimeError, match="does not require a gradient"):
            x.sum().backward()
        with pytest.raises(KeyError):
            x.reduce("tp")
        with pytest.raises(ValueError, match="reduction is 'median'"):
            x.reduce("dp", "median")
        with pytest.raises(TypeError, match="average"):
            x.long().reduce("dp", "avg")
        with pytest.raises(TypeError, match="cannot be pickled"):
            x.__reduce_ex__(2)
        with pytest.raises(KeyError):
            fetch_shard(x, tp=0)
    with pytest.raises(ValueError, match="no mesh tensor"):
        fetch_shard([1, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_reductions(procs: ProcMesh, dtype: torch.dtype) -> None:
    ranks = [torch.tensor([[1, 5], [6, 3]]) * (rank + 1) + rank for rank in range(2)]
    stacked = torch.stack(ranks).to(dtype)
    expected = {"sum": stacked.sum(0), "product": stacked.prod(0), "min": stacked.amin(0), "max": stacked.amax(0)}
    if dtype is torch.int64:
        expected |= {"band": stacked[0] & stacked[1], "bor": stacked[0] | stacked[1], "bxor": stacked[0] ^ stacked[1]}
    else:
        expected["avg"] = stacked.mean(0)
    with procs.activate():
        rank = procs.rank("dp")
        x = (torch.tensor([[1, 5], [6, 3]]) * (rank + 1) + rank).to(dtype)
        for reduction, value in expected.items():
            assert all(torch.equal(one, value.to(dtype)) for one in both(x.reduce("dp", reduction))), reduction
            rows = both(x.reduce("dp", reduction, scatter=True))
            assert all(torch.equal(row, value[place].to(dtype)) for place, row in enumerate(rows)), reduction
        assert all(torch.equal(one, stacked) for one in both(x.reduce("dp", "stack")))
        swapped = both(x.reduce("dp", "stack", scatter=True))
        assert all(torch.equal(one, stacked[:, place]) for place, one in enumerate(swapped))
        alone = x.reduce("dp", mesh=procs.slice(dp=1))
        assert len(alone.mesh) == 1 and torch.equal(inspect(alone), stacked.sum(0))
        with pytest.raises(TypeError, match="give one"):
            x.reduce("dp", out=x, mesh=procs)
        out = torch.zeros(2, 2, dtype=dtype)
        assert x.reduce("dp", out=out) is out
        assert all(torch.equal(one, stacked.sum(0)) for one in both(out))
        view = x[0]
        assert x.reduce_("dp", "max") is x
        assert all(torch.equal(one, stacked.amax(0)[0]) for one in both(view))


def test_copies_between_ranks(procs: ProcMesh) -> None:
    first, second = procs.slice(dp=0), procs.slice(dp=1)
    with procs.activate():
        x = torch.arange(3.0) + procs.rank("dp") * 10
    part = x.slice_mesh(dp=1)
    moved = part.to_mesh(first)
    spread = part.to_mesh(procs)
    part += 1  # not seen by the copies, but by the whole
    assert torch.equal(inspect(moved), torch.arange(3.0) + 10)
    assert all(torch.equal(one, torch.arange(3.0) + 10) for one in both(spread))
    assert torch.equal(inspect(x, dp=1), torch.arange(3.0) + 11)
    with second.activate():
        only = torch.full((2,), 7.0)
        assert inspect(only).tolist() == [7.0, 7.0]
    with pytest.raises(ValueError, match="dimension dp"):
        x.to_mesh(first)
    with pytest.raises(ValueError, match="different ranks"):
        moved + only


def build() -> nn.Module:
    """A network with what needs state and random numbers."""
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))


@pytest.mark.parametrize("kind", ["sgd", "adamw", "foreach"])
def test_training_is_what_one_process_does(procs: ProcMesh, kind: str) -> None:
    torch.manual_seed(3)
    local = build()
    batches = [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(4)]

    def train(model: nn.Module) -> list[Any]:
        if kind == "sgd":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=kind == "foreach")
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        losses = []
        for images, labels in batches:
            optimizer.zero_grad()
            for half in range(2):  # gradients are accumulated
                part = slice(half * 4, half * 4 + 4)
                loss: Any = nn.functional.cross_entropy(model(images[part]), labels[part]) / 2
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        return losses

    with procs.activate():
        mesh_model = build()
        mesh_model.load_state_dict(copy.deepcopy(local.state_dict()))
        mesh_losses = train(mesh_model)
        assert all(isinstance(parameter, nn.Parameter) for parameter in mesh_model.parameters())
    expected = train(local)
    for mesh_loss, loss in zip(mesh_losses, expected, strict=True):
        assert all(torch.allclose(one, loss, atol=1e-6) for one in both(mesh_loss))
    state = inspect(dict(mesh_model.state_dict()), dp=1)
    assert all(torch.allclose(state[name], value, atol=1e-5) for name, value in local.state_dict().items())


@pytest.mark.parametrize(
    "model",
    [
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.Sequential(nn.Conv1d(5, 5, 3, padding=1), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(20, 3)),
    ],
    ids=["transformer", "convolution"],
)
def test_modules_of_torch(procs: ProcMesh, model: nn.Module) -> None:
    batch = torch.randn(2, 5, 8)
    expected = model(batch)
    expected.sum().backward()
    with procs.activate():
        copied = copy.deepcopy(model)
        for name, parameter in model.named_parameters():
            owner = copied.get_submodule(name.rpartition(".")[0])
            setattr(owner, name.rpartition(".")[2], nn.Parameter(torch.as_tensor(parameter.detach())))
        result = copied(torch.as_tensor(batch))
        result.sum().backward()
        assert torch.allclose(inspect(result.detach(), dp=1), expected.detach(), atol=1e-5)
        for mine, other in zip(copied.parameters(), model.parameters(), strict=True):
            assert other.grad is not None
            assert torch.allclose(inspect(mine.grad), other.grad, atol=1e-4)


class Cube(torch.autograd.Function):
    """An operation with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x**2


def test_gradients(procs: ProcMesh) -> None:
    with procs.activate():
        x: Any = (torch.arange(3.0) + procs.rank("dp")).requires_grad_()
        assert x.is_leaf and x.grad is None
        apply: Any = Cube.apply
        apply(x).sum().backward()
        assert inspect(x.grad, dp=1).tolist() == [3.0, 12.0, 27.0]
        x.grad = None
        assert x.grad is None
        (grad,) = torch.autograd.grad((x**2).sum(), [x])
        assert inspect(grad).tolist() == [0.0, 2.0, 4.0]
        y: Any = torch.zeros(3)
        view = y[1:]
        y[0].copy_(x[0])  # a write through a view makes all of it depend on x
        assert y.requires_grad and view.requires_grad
        y.sum().backward(retain_graph=True)
        assert inspect(x.grad).tolist() == [1.0, 0.0, 0.0]
        with torch.no_grad():
            x += 1
            assert not (x * 2).requires_grad
        assert not x.detach().requires_grad and not x.data.requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            low = x.reshape(1, 3) @ x.reshape(3, 1)
        assert low.dtype is torch.bfloat16 and inspect(low).dtype is torch.bfloat16


def test_values_inside_of_the_graph_can_be_written_to(procs: ProcMesh) -> None:
    with procs.activate():
        weight = torch.ones(2, requires_grad=True)
        inner = weight * 2
        inner += 1
        total: Any = torch.zeros(())
        for _ in range(2):
            total.add_(torch.relu_(inner * 3).sum())
        total.backward()
        assert inspect([inner, weight.grad])[1].tolist() == [12.0, 12.0]


def test_backward_as_a_function(procs: ProcMesh) -> None:
    with procs.activate():
        w: Any = torch.ones(3, requires_grad=True)
        shared = w * 2
        torch.autograd.backward([shared.sum(), (shared * w).sum()])  # 2 and 4
        assert inspect(w.grad, dp=1).tolist() == [6.0] * 3
        torch.autograd.backward(w * 3, torch.full((3,), 5.0))
        assert inspect(w.grad).tolist() == [21.0] * 3
        for options in ({"create_graph": True}, {"inputs": [w]}):
            with pytest.raises(NotImplementedError, match=r"torch\.autograd\.grad"):
                torch.autograd.backward((w * 2).sum(), **options)
        with pytest.raises(RuntimeError, match="require gradients"):
            torch.autograd.backward([w.sum(), w.detach().sum()])
        with pytest.raises(RuntimeError, match="1 gradients"):
            torch.autograd.backward([w * 2, w * 3], [torch.ones(3)])


def test_random_numbers(procs: ProcMesh) -> None:
    with procs.activate():
        random.manual_seed(5)
        state = random.get_state()
        same = both(torch.rand(4))
        random.set_state(state)
        again = both(torch.rand(4))
        random.manual_seed(5, per_rank=procs)
        other = both(nn.functional.dropout(torch.ones(64)))
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], again[1])
    assert not torch.equal(other[0], other[1])
    torch.manual_seed(5)
    assert torch.equal(same[0], torch.rand(4))


def test_remote_functions(procs: ProcMesh) -> None:
    @remote
    def described(x: torch.Tensor, factor: float) -> dict[str, Any]:
        return {"big": x * factor, "names": ["a", "b"], "two": (x.sum(), x.reshape(-1)[:2])}

    @remote(propagate=lambda x: x.sum())
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    host = remote("os.path.basename")
    with procs.activate():
        x = (torch.ones(2, 3) + procs.rank("dp")).requires_grad_()
        for _ in range(2):  # the second call knows the shapes
            found = described(x, 2.0)
            assert found["names"] == ["a", "b"] and found["two"][1].shape == (2,)
            assert inspect(found["big"], dp=1).tolist() == [[4.0] * 3] * 2
        loss: Any = total(x)
        loss.backward()
        assert inspect(x.grad, dp=1).tolist() == [[1.0] * 3] * 2
        every = described.call(x.detach(), 3.0).get(_GET_S)
        assert every.item(dp=1)["two"][0] == 12.0
        assert call_on_shard_and_fetch(total, x.detach(), shard={"dp": 1}).get(_GET_S) == 12.0
        assert host.call("/a/b").get(_GET_S).item(dp=0) == "b"
        with pytest.raises(ValueError, match="one rank"):
            host.call_one("/a/b")
    with procs.slice(dp=1).activate():
        assert host.call_one("/a/c").get(_GET_S) == "c"
    with pytest.raises(ValueError, match="activate"):
        host.call("/a/b")
    with pytest.raises(TypeError, match="propagate"):
        remote(print, propagate=3)


class Scaler(Actor):
    """Multiplies what it gets."""

    def __init__(self) -> None:
        self.seen: Any = None

    @endpoint
    def scale(self, x: torch.Tensor, by: int) -> torch.Tensor:
        self.seen = x
        return x * by

    @endpoint(propagate=lambda x, by: x.repeat(by))
    def repeated(self, x: torch.Tensor, by: int) -> torch.Tensor:
        return x.repeat(by)

    @endpoint
    def last(self) -> Any:
        return type(self.seen).__name__, self.seen


def test_actors_get_their_ranks_shards_in_turn(procs: ProcMesh) -> None:
    actors = procs.spawn("scaler", Scaler)
    with procs.activate():
        x = torch.arange(3.0) + procs.rank("dp")
        results = actors.scale.call(x, 2)
        x += 100  # issued after the call: not seen by it
        assert results.get(_GET_S).item(dp=1).tolist() == [2.0, 4.0, 6.0]
        made = actors.scale.rref(x, 3)
        assert isinstance(made, MeshTensor)
        assert inspect(made + 1, dp=1).tolist() == [304.0, 307.0, 310.0]
        assert inspect(actors.scale.rref(x, 3)).tolist() == [300.0, 303.0, 306.0]
        longer = actors.repeated.rref(x, 2)
        assert longer.shape == (6,) and inspect(longer, dp=1).tolist() == [101.0, 102.0, 103.0] * 2
    name, value = actors.last.call().get(_GET_S).item(dp=0)
    assert name == "Tensor" and torch.equal(value, torch.arange(100.0, 103.0))
    with pytest.raises(ValueError, match="not on the ranks"):
        actors.slice(dp=0).scale.rref(x, 2)
    actors.stop().get(_GET_S)


def test_a_first_call_on_new_procs_waits_for_their_workers(hosts: HostMesh) -> None:
    for _ in range(3):
        new = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
        actors = new.spawn("scaler", Scaler)
        with new.activate():
            x = torch.arange(3.0)  # opens the workers
            assert actors.scale.call(x, 2).get(_GET_S).item(dp=1).tolist() == [0.0, 2.0, 4.0]
        new.stop().get(_GET_S)


def test_a_million_values_leave_nothing_behind(procs: ProcMesh) -> None:
    @remote
    def live() -> int:
        import gc

        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    with procs.activate():
        x: Any = torch.zeros(4)
        before = live.call().get(_GET_S).item(dp=0)
        for step in range(3000):
            x = x + 1.0
            x[step % 4]
            x.mul_(step * 0.001)
        sync(procs)
        assert live.call().get(_GET_S).item(dp=0) <= before + 20
        engine = x._h.view.engine
        assert engine.templates._next < 200
        assert not engine._frames and not engine.ints
