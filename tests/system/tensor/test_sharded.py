"""Sharded tensors on four procs: values, training, views, random numbers, conversions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import Actor, ProcMesh, endpoint
from monarch_hpc.distributed import Mesh, MeshTensor, distribute, module_to_mesh
from monarch_hpc.exceptions import RemoteOpError
from monarch_hpc.tensor import inspect, remote

_GET_S = 60.0


def test_a_tensor_is_sharded_and_read(mesh: Mesh) -> None:
    t = torch.arange(35.0).reshape(7, 5)
    dt: Any = distribute(t, mesh, sharding_spec=["dp", None])
    assert isinstance(dt, MeshTensor) and isinstance(dt, torch.Tensor)
    assert (dt.shape, dt.dtype) == (t.shape, t.dtype)
    assert "sharded over" in repr(dt) and "requires_grad" not in repr(dt)
    assert [str(one) for one in dt.placements] == ["S(0)", "R"]
    assert torch.equal(dt.full_tensor(), t)
    assert torch.equal(dt.shard(), t[:4]) and torch.equal(dt.shard(dp=1, tp=1), t[4:])
    product: Any = dt @ dt.T
    assert torch.equal(product.full_tensor(), t @ t.T)
    both = distribute(t, mesh, [("dp", "tp"), None])
    assert torch.equal(both.shard(dp=1, tp=1), t[6:])
    assert torch.equal(both.redistribute([None, "tp"]).full_tensor(), t)
    assert torch.equal(distribute(both, mesh, ["tp"]).shard(tp=1), t[4:])
    total: Any = dt.sum()
    assert (total.item(), total.item_async().get(_GET_S)) == (595.0, 595.0)
    assert bool(dt.sum() > 1) and float(dt[0, 0]) == 0.0 and dt[1, :2].tolist() == [5.0, 6.0]
    mixed: Any = dt + torch.ones(5)  # one of the program is sent to all
    assert torch.equal(mixed.full_tensor(), t + 1)
    mesh.sync()


def test_new_tensors(mesh: Mesh) -> None:
    zeros = mesh.zeros(5, 4, spec=["dp", "tp"])
    assert torch.equal(zeros.full_tensor(), torch.zeros(5, 4))
    assert torch.equal(mesh.ones((3,), dtype=torch.int64).full_tensor(), torch.ones(3, dtype=torch.int64))
    full = mesh.full((3, 2), 7, spec=[None, "tp"])
    assert full.dtype == torch.int64 and torch.equal(full.full_tensor(), torch.full((3, 2), 7))
    assert mesh.zeros(2, requires_grad=True).requires_grad
    zeros.add_(1)
    assert zeros.sum().item() == 20.0


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.25), nn.LayerNorm(8), nn.Linear(8, 3))


def _losses(model: nn.Module, inputs: Any, targets: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        for half in range(2):  # gradients are accumulated
            loss = nn.functional.cross_entropy(model(inputs[half]), targets[half]) / 2
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("spec", [["dp"], [("dp", "tp")], None])
def test_training_gives_the_losses_of_one_process(mesh: Mesh, spec: Any) -> None:
    torch.manual_seed(2)
    inputs, targets = torch.randn(2, 9, 6), torch.randint(0, 3, (2, 9))  # 9 rows do not divide
    plan: dict[str, Any] = {"0.weight": ["tp", None], "0.bias": ["tp"], "4.weight": [None, "tp"]}
    model = module_to_mesh(_model(), mesh, plan)
    assert [str(one) for one in model[0].weight.placements] == ["R", "S(0)"]  # type: ignore[index]
    sent = [[distribute(part, mesh, spec) for part in parts] for parts in (inputs, targets)]
    mesh.manual_seed(3)
    found = _losses(model, *sent)
    torch.manual_seed(3)
    one = _model_with_seed(3)
    expected = _losses(one, inputs, targets)
    assert found == pytest.approx(expected, rel=1e-5)
    for parameter, other in zip(model.parameters(), one.parameters(), strict=True):
        assert torch.allclose(parameter.full_tensor(), other, atol=1e-5)  # type: ignore[attr-defined]


def _model_with_seed(seed: int) -> nn.Module:
    model = _model()
    torch.manual_seed(seed)
    return model


def test_a_module_keeps_what_it_shares_and_stays_as_it_is(mesh: Mesh) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    module[1].weight = module[0].weight
    placed = module_to_mesh(module, mesh)
    assert placed[0].weight is placed[1].weight  # type: ignore[index]
    assert isinstance(placed[0].weight, nn.Parameter)  # type: ignore[index]
    assert isinstance(placed[2].running_mean, MeshTensor)  # type: ignore[index]
    assert type(module[0].weight) is nn.Parameter
    x = torch.randn(8, 3)
    assert torch.allclose(placed(distribute(x, mesh, ["dp"])).full_tensor(), module(x), atol=1e-6)
    assert torch.allclose(placed[2].running_mean.full_tensor(), module[2].running_mean)  # type: ignore[index,arg-type]
    with pytest.raises(KeyError, match=r"plan names '3.weight'; the module has: 0.weight"):
        module_to_mesh(module, mesh, {"3.weight": None})


def test_gradients_are_those_of_one_process_and_placed_as_their_leaves(mesh: Mesh) -> None:
    t = torch.rand(5, 3, requires_grad=True)
    dt: Any = distribute(t, mesh, ["dp", "tp"])
    assert dt.requires_grad and dt.is_leaf and dt.grad is None
    x: Any
    for x in (dt, t):
        (x.exp() @ x.T).sum().backward()
    grad: Any = dt.grad
    assert t.grad is not None and torch.allclose(grad.full_tensor(), t.grad)
    assert [str(one) for one in grad.placements] == ["S(0)", "S(1)"]


def test_random_numbers_are_those_of_one_process_on_every_mesh(mesh: Mesh) -> None:
    torch.manual_seed(7)
    expected = torch.rand(5, 3), torch.randn(4), nn.functional.dropout(torch.ones(6, 4), 0.5), torch.empty(3).normal_()
    for one in (mesh, mesh.flatten("all"), mesh.slice(dp=0)):
        name = one.mesh_dim_names[0]
        one.manual_seed(7)
        found: Any = (
            one.rand(5, 3, spec=[name]),
            one.randn(4, spec=[name]),
            nn.functional.dropout(one.ones(6, 4, spec=[None, name]), 0.5),
            one.zeros(3, spec=[name]).normal_(),
        )
        for tensor, other in zip(found, expected, strict=True):
            assert torch.equal(tensor.full_tensor(), other)


def test_a_slice_of_the_mesh_has_tensors_of_its_own(mesh: Mesh) -> None:
    part = mesh.slice(dp=1)
    assert (part.shape, part.mesh_dim_names, part.size(), mesh.size("dp")) == ((2,), ("tp",), 2, 2)
    x: Any = distribute(torch.arange(3.0), part, ["tp"])
    assert torch.equal((x * 2).shard(tp=1), torch.tensor([4.0]))
    with pytest.raises(ValueError, match="different ranks"):
        x + mesh.ones(3)


# ---- the bugs of DTensor, by name ----


@pytest.mark.parametrize("spec", [["dp", None], [None, "dp"], ["dp", "tp"], [("dp", "tp"), None]])
def test_pytorch_147570_a_write_to_a_view_is_seen(mesh: Mesh, spec: Any) -> None:
    t = torch.arange(36.0).reshape(9, 4)
    dt: Any = distribute(t, mesh, spec)
    for x in (dt, t):
        x[1:3].mul_(10)
        x[:, 1] = -1.0
        x[4] += 2
        x.view(-1)[5:7] = 0.5
        x.T[2].fill_(3)
        x[torch.tensor([0, 8]), torch.tensor([3, 3])] = 7.0
        x.detach()[2:4].sub_(1)
        x.data[5:, 2:].zero_()
        with torch.no_grad():
            x[3:6][1:].add_(x[:2])
    assert torch.equal(dt.full_tensor(), t)


def test_a_view_that_crosses_shards_is_not_used_after_a_write_to_its_tensor(mesh: Mesh) -> None:
    dt: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    view = dt[3:5]
    assert view.tolist() == [3.0, 4.0]
    view.add_(1)
    assert view.tolist() == [4.0, 5.0] and dt.tolist() == [0, 1, 2, 4, 5, 5, 6, 7]
    dt.add_(1)
    with pytest.raises(RuntimeError, match="its tensor was written to since; make the view again"):
        view.tolist()
    assert dt[3:5].tolist() == [5.0, 6.0]


@pytest.mark.parametrize("spec", [[None, "dp"], [None, ("dp", "tp")], ["tp", "dp"]])
def test_pytorch_179502_a_view_of_a_sharded_dimension_has_the_right_numbers(mesh: Mesh, spec: Any) -> None:
    t = torch.randn(12, 8)
    dt: Any = distribute(t, mesh, spec)
    for shape in ((16, 6), (-1, 6), (96,), (2, 6, 8), (12, 2, 4), (3, 32)):
        assert torch.equal(dt.view(shape).full_tensor(), t.view(shape))


@pytest.mark.parametrize("spec", [["dp"], [None, "dp"], ["dp", "tp"]])
def test_pytorch_172350_index_put_of_sharded_values_goes_where_it_should(mesh: Mesh, spec: Any) -> None:
    rows, columns = torch.tensor([0, 1, 2, 3]), torch.tensor([3, 2, 1, 0])
    for values_spec in (["dp"], ["tp"], None):
        t, values = torch.zeros(4, 4), torch.arange(1.0, 5.0)
        dt: Any = distribute(t, mesh, spec)
        dt.index_put_((rows, columns), distribute(values, mesh, values_spec))
        assert torch.equal(dt.full_tensor(), t.index_put_((rows, columns), values))


# ---- functions, conversions, actors ----


def test_functions_run_on_all_ranks(mesh: Mesh) -> None:
    batch = torch.arange(6.0)
    doubled = mesh.execute(lambda x: x * 2, batch)
    assert torch.equal(doubled.full_tensor(), batch * 2)
    dt: Any = distribute(batch, mesh, ["dp"])
    positive = mesh.execute(lambda x, least: {"all": [x[x > least], 5]}, dt, least=2.0)
    assert positive["all"][1] == 5 and positive["all"][0].tolist() == [3.0, 4.0, 5.0]
    known = mesh.execute(torch.cumsum, dt, 0, propagate=lambda x, dim: x)
    assert known.tolist() == [0, 1, 3, 6, 10, 15]
    with pytest.raises(TypeError, match="a tensor of this rank alone"):
        mesh.execute(lambda x: x.to_local(), dt)


def test_tensors_become_values_of_the_ranks_and_back_with_gradients(mesh: Mesh, grid: ProcMesh) -> None:
    t = torch.arange(8.0).reshape(4, 2).requires_grad_()
    dt: Any = distribute(t, mesh, ["dp", None])
    own = dt.to_local(["dp"])
    assert own.shape == (2, 2) and torch.equal(inspect(own.detach(), dp=1), t[2:].detach())
    back = (own * 3).to_global(["dp"])
    assert back.shape == (4, 2) and torch.equal(back.full_tensor(), t * 3)
    (back * back).sum().backward()
    assert torch.equal(dt.grad.full_tensor(), 18 * t.detach())
    with grid.activate():
        ranks: Any = grid.rank("dp") * 2 + grid.rank("tp")
    assert ranks.reshape(1).to_global([("dp", "tp")]).tolist() == [0, 1, 2, 3]


class Keeper(Actor):
    """Sums what it gets."""

    @endpoint
    def total(self, x: torch.Tensor) -> float:
        """The sum of this rank's shard."""
        return float(x.sum())


def test_actors_get_their_ranks_shards(mesh: Mesh, grid: ProcMesh) -> None:
    dt: Any = distribute(torch.arange(4.0), mesh, ["dp"])
    totals = grid.spawn("keeper", Keeper).total.call(dt).get(_GET_S)
    assert [totals.item(dp=dp, tp=tp) for dp in range(2) for tp in range(2)] == [1.0, 1.0, 5.0, 5.0]


# ---- failures ----


def test_a_failure_is_raised_at_the_read_and_spoils_no_more(mesh: Mesh) -> None:
    @remote(propagate=lambda x: x)
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("on every rank")

    dt: Any = mesh.ones(4, spec=["dp"])
    bad: Any = fails(dt) + 1
    with pytest.raises(ArithmeticError, match="on every rank") as caught:
        bad.full_tensor()
    assert isinstance(caught.value, RemoteOpError) and "test_sharded.py" in caught.value.line
    assert dt.sum().item() == 4.0


def test_bad_input_is_refused_where_it_stands_and_nothing_is_sent(mesh: Mesh, grid: ProcMesh) -> None:
    dt, three = mesh.ones(4, 2, spec=["dp"]), mesh.ones(3)
    with grid.activate():
        own = torch.ones(4, 2)
    positive = dt > 0
    engine = mesh._view.engine
    mesh.sync()
    before = engine.next_value
    with pytest.raises(ValueError, match=r"shape \(3, 2\) has 6 ranks, but there are 4 procs"):
        Mesh(shape=(3, 2), mesh_dim_names=("a", "b"), procs=grid)
    with pytest.raises(ValueError, match=r"mesh_dim_names is \('a',\), but shape is \(2, 2\): give one name for each"):
        Mesh(shape=(2, 2), mesh_dim_names=("a",), procs=grid)
    with pytest.raises(TypeError, match=r"mesh_dim_names is 'ab', a str: give a list of strings, \['dp', 'tp'\]"):
        Mesh(shape=(2, 2), mesh_dim_names="ab", procs=grid)
    with pytest.raises(TypeError, match=r"shape is 4, an int: give the sizes of the dimensions, such as \(4, 2\)"):
        Mesh(shape=4, procs=grid)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give one"):
        Mesh(shape=(4,), procs=grid, hosts=object())  # type: ignore[arg-type]
    for spec, error in ((["pp"], KeyError), (["dp", "dp"], ValueError), ([None] * 3, ValueError), ("dp", TypeError)):
        with pytest.raises(error):
            distribute(torch.ones(4, 2), mesh, spec)
        with pytest.raises(error):
            mesh.zeros(4, 2, spec=spec)
        with pytest.raises(error):
            dt.redistribute(spec)
    with pytest.raises(ValueError, match="some of the arguments are sharded, others have a value for each rank"):
        dt + own
    with pytest.raises(ValueError, match="some of the arguments are sharded"):
        distribute(own, mesh)
    with pytest.raises(ValueError, match="some of the arguments are sharded"):
        mesh.execute(torch.neg, own)
    with pytest.raises(ValueError, match="cannot be split evenly over dp"):
        three.to_local(["dp"])
    for call in (
        lambda: dt.reduce("dp"),
        lambda: dt.slice_mesh(dp=0),
        lambda: dt.to_mesh(grid),
        lambda: dt.to_global(),
        lambda: dt.numpy(),
        lambda: inspect(dt),
        lambda: own.full_tensor(),  # type: ignore[attr-defined]
        lambda: own.item(),
        lambda: mesh.zeros(2, sepc=None),
        lambda: distribute(torch.ones(2).to_sparse(), mesh),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(RuntimeError, match="for one element"):
        dt.item()
    with pytest.raises(RuntimeError, match="reduction dim"):
        dt @ dt
    with pytest.raises(NotImplementedError, match="depends on the values"):
        dt[positive]
    assert engine.next_value == before
