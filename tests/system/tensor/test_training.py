"""Modules and optimizers on the ranks: equal to one process, however parallel; few messages; failures and refusals."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from monarch_hpc.exceptions import RemoteOpError
from monarch_hpc.tensor.worker.training.optimizers import BY_ELEMENT
from tests.system.tensor.trainings import batches, by_ddp, by_fsdp, by_tp, by_tp_and_fsdp, losses, network

_GET_S = 60.0


def _sent(mesh: Mesh, parts: torch.Tensor) -> list[Any]:
    return [distribute(part, mesh, ["dp"]) for part in parts]


_LOCAL: dict[str, dict[str, Any]] = {
    "plain": {"out_spec": ["dp"]},
    "ddp": {"out_spec": ["dp"], "parallelize": by_ddp},
    "fsdp": {"out_spec": ["dp"], "parallelize": by_fsdp},
    "tp": {"out_spec": ["dp"], "parallelize": by_tp},
    "tp and fsdp": {"out_spec": ["dp"], "parallelize": by_tp_and_fsdp},
    "compiled": {"out_spec": ["dp"], "compile": "aot_eager"},
}
_PLAN: dict[str, Any] = {"0.weight": ["tp", None], "0.bias": ["tp"], "2.weight": [None, "tp"]}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("options", [{"plan": _PLAN}, *_LOCAL.values()], ids=["sharded", *_LOCAL])
@pytest.mark.parametrize("num_rows", [8, 7])
def test_a_module_on_the_ranks_trains_as_in_one_process(mesh: Mesh, options: dict[str, Any], num_rows: int) -> None:
    inputs, targets = batches(6, num_rows=num_rows)  # 7 rows do not divide
    one = network()
    expected = losses(one, torch.optim.AdamW(one.parameters(), lr=1e-2), inputs, targets)
    model = module_to_mesh(network(), mesh, remote=True, **options)
    optimizer = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-2)
    found = losses(model, optimizer, _sent(mesh, inputs), _sent(mesh, targets))
    assert found == pytest.approx(expected, rel=1e-5)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in one.named_parameters()]
    for parameter, other in zip(model.parameters(), one.parameters(), strict=True):
        assert torch.allclose(parameter.full_tensor(), other, atol=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("captured", [False, True])
def test_a_step_of_an_optimizer_that_has_no_gradients_is_a_version(mesh: Mesh, captured: bool) -> None:
    used, unused = (distribute(torch.ones(4), mesh, []).requires_grad_() for _ in range(2))
    optimizers = [torch.optim.SGD([one], lr=0.1) for one in (used, unused)]

    def step(x: Any) -> Any:
        loss = (x * used).square().mean()
        used.grad = None
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    run: Any = mesh.capture(step) if captured else step
    found = [run(distribute(torch.ones(4), mesh, ["dp"])).item() for _ in range(6)]
    assert found == sorted(found, reverse=True) and unused.full_tensor().tolist() == [1.0] * 4


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("name", ["ddp", "tp and fsdp"])
def test_torch_s_own_optimizers_step_parameters_on_the_ranks(mesh: Mesh, name: str) -> None:
    inputs, targets = batches(4)
    one = network()
    expected = losses(one, torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9), inputs, targets)
    model = module_to_mesh(network(), mesh, remote=True, **_LOCAL[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert losses(model, optimizer, _sent(mesh, inputs), _sent(mesh, targets)) == pytest.approx(expected, rel=1e-5)
    for parameter, other in zip(model.parameters(), one.parameters(), strict=True):
        assert torch.allclose(parameter.full_tensor(), other, atol=1e-5)  # type: ignore[attr-defined]


def test_gradients_read_between_backward_passes_are_summed_once(mesh: Mesh) -> None:
    inputs, targets = batches(2)
    one = network()
    for options in ({"remote": True, "out_spec": ["dp"]}, {"remote": True, **_LOCAL["ddp"]}, {}):
        model = module_to_mesh(network(), mesh, **options)
        one.zero_grad()
        for place in range(2):
            for module, x, y in ((model, *(_sent(mesh, part)[place] for part in (inputs, targets))),):
                nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            nn.functional.cross_entropy(one(inputs[place]), targets[place]).backward()  # type: ignore[no-untyped-call]
            for parameter, other in zip(model.parameters(), one.parameters(), strict=True):
                assert torch.allclose(parameter.grad.full_tensor(), other.grad, atol=1e-6)  # type: ignore


def test_a_step_is_eight_messages(mesh: Mesh) -> None:
    model = module_to_mesh(network(), mesh, remote=True, **_LOCAL["ddp"])
    optimizer = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-2)
    inputs, targets = (_sent(mesh, part)[0] for part in batches(1))
    engine = mesh._view.engine
    counts = []
    for _ in range(3):
        mesh.sync()
        before = engine._base
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        mesh.sync()
        counts.append(engine._base - before)
    assert counts[-1] <= 8


@pytest.mark.parametrize("remote", [False, True])
def test_a_scaler_skips_the_step_whose_gradients_overflow(mesh: Mesh, remote: bool) -> None:
    inputs, targets = batches(4)
    inputs[1, 0, 0] = float("inf")

    def run(model: Any, optimizer: Any, inputs: Any, targets: Any) -> list[float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        scales = []
        for x, y in zip(inputs, targets, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    one = network()
    expected = run(one, torch.optim.SGD(one.parameters(), lr=0.1), inputs, targets)
    model = module_to_mesh(network(), mesh, remote=remote, **(_LOCAL["plain"] if remote else {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if remote:
        optimizer = RemoteOptimizer(torch.optim.SGD, model.parameters(), lr=0.1)  # type: ignore[assignment]
    assert run(model, optimizer, _sent(mesh, inputs), _sent(mesh, targets)) == expected
    assert expected[1] == 32.0
    for parameter, other in zip(model.parameters(), one.parameters(), strict=True):
        assert torch.allclose(parameter.full_tensor(), other, atol=2e-3)  # type: ignore[attr-defined]


def test_a_write_to_a_tensor_of_the_program_is_seen_or_refused(mesh: Mesh, grid: ProcMesh) -> None:
    total = torch.zeros(2)
    assert total.add_(mesh.ones(2)) is total and total.tolist() == [1.0, 1.0]
    with grid.activate():
        own = torch.ones(2)
    with pytest.raises(TypeError, match=r"writes to a tensor of the program"):
        total.add_(own)
    assert total.tolist() == [1.0, 1.0]


class _Parts(nn.Module):
    """Takes and returns tensors in structures, and behaves otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch: dict[str, torch.Tensor], times: float, *, name: str = "y") -> dict[str, Any]:
        """Outputs by row, and a number."""
        rows = self.norm(self.linear(batch["x"])) * times
        return {name: (self.dropout(rows), rows.argmax(1)), "training": self.training}


def test_structures_modes_buffers_and_states_of_modules(mesh: Mesh) -> None:
    module = _Parts()
    model = module_to_mesh(module, mesh, remote=True)  # of sharded tensors: equal to one process, statistics too
    x = torch.randn(6, 6)
    mesh.manual_seed(5)
    found = model({"x": distribute(x, mesh, ["dp"])}, 2.0, name="z")
    torch.manual_seed(5)
    expected = module({"x": x}, 2.0, name="z")
    assert found["training"] is True
    assert torch.allclose(found["z"][0].full_tensor(), expected["z"][0], atol=1e-6)
    assert torch.equal(found["z"][1].full_tensor(), expected["z"][1])
    assert torch.allclose(model.norm.running_mean.full_tensor(), module.norm.running_mean)  # type: ignore
    model.eval()
    module.eval()
    found, expected = model({"x": distribute(x, mesh)}, 2.0), module({"x": x}, 2.0)
    assert found["training"] is False
    assert torch.allclose(found["y"][0].full_tensor(), expected["y"][0], atol=1e-6)

    local = module_to_mesh(_Parts(), mesh, remote=True, out_spec=["dp"])
    local.load_state_dict(model.state_dict())
    local.eval()
    again = local({"x": distribute(x, mesh, ["dp"])}, 2.0)
    assert torch.allclose(again["y"][0].full_tensor(), expected["y"][0], atol=1e-6)
    assert isinstance(local, _Parts) and isinstance(next(local.parameters()), nn.Parameter)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(local)


def test_dropout_differs_between_rows_and_repeats_with_the_seed(mesh: Mesh) -> None:
    model = module_to_mesh(nn.Dropout(0.5), mesh, remote=True, out_spec=["dp"])
    rows = distribute(torch.ones(4, 16), mesh, ["dp"])
    drawn = []
    for _ in range(2):
        mesh.manual_seed(3)
        drawn.append([model(rows).full_tensor() for _ in range(2)])
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[0][1]) and not torch.equal(drawn[0][0][:2], drawn[0][0][2:])


class _Fails(nn.Linear):
    """Fails in forward, backward or nowhere."""

    where = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output."""
        if x.is_meta:
            return super().forward(x)
        if self.bias[0] > 100:
            raise ArithmeticError("in forward")
        y = super().forward(x)
        if self.bias[0] > 10:
            y.register_hook(_raise)  # type: ignore[no-untyped-call]
        return y


def _raise(_grad: Any) -> Any:
    raise ArithmeticError("in backward")


@pytest.mark.parametrize(("bias", "where"), [(11.0, "in backward"), (101.0, "in forward")])
def test_a_failure_is_raised_at_the_read_and_steps_nothing(mesh: Mesh, bias: float, where: str) -> None:
    model = module_to_mesh(_Fails(3, 3), mesh, remote=True, out_spec=["dp"])
    optimizer = RemoteOptimizer(torch.optim.SGD, model.parameters(), lr=0.1)
    x = distribute(torch.ones(4, 3), mesh, ["dp"])
    before = model.weight.full_tensor()  # type: ignore[operator, union-attr]
    with torch.no_grad():
        model.bias.fill_(bias)  # type: ignore[operator]
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    spoilt = loss if where == "in forward" else mesh.ones(1)  # a failed effect spoils the next read
    with pytest.raises(ArithmeticError, match=where) as caught:
        spoilt.item()
    assert isinstance(caught.value, RemoteOpError) and "test_training.py" in caught.value.line
    assert torch.equal(model.weight.full_tensor(), before)  # type: ignore[operator, union-attr]
    with torch.no_grad():
        model.bias.zero_()  # type: ignore[operator]
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight.full_tensor(), before)  # type: ignore[operator, union-attr]


def test_what_would_be_wrong_is_refused(mesh: Mesh) -> None:
    module = network()
    for options, match in (
        ({"out_spec": ["dp"]}, "add remote=True"),
        ({"remote": True, "parallelize": by_ddp}, "need out_spec="),
        ({"remote": True, "out_spec": [], "plan": {"0.bias": None}}, "let parallelize shard"),
        ({"remote": True, "out_spec": [], "parallelize": 3}, "parallelize"),
    ):
        with pytest.raises(TypeError, match=match):
            module_to_mesh(module, mesh, **options)
    with pytest.raises(KeyError, match="pp"):
        module_to_mesh(module, mesh, remote=True, out_spec=["pp"])
    model: Any = module_to_mesh(module, mesh, remote=True, out_spec=["dp"])
    with pytest.raises(RuntimeError, match="reduction dim"):
        model(mesh.ones(4, 5))
    whole = model(mesh.ones(4, 6))  # each rank makes all rows
    with pytest.raises(RuntimeError, match=r"shape \(4, 3\) on this rank, where its part of \(4, 3\) is \(2, 3\)"):
        whole.full_tensor()
    x = distribute(torch.ones(4, 6), mesh, ["dp"])
    penalty = model(x).sum() + model[0].weight.square().sum()
    penalty.backward()
    with pytest.raises(RuntimeError, match="was used beside its module"):
        mesh.ones(1).item()
    with pytest.raises(TypeError, match="needs a closure"):
        RemoteOptimizer(torch.optim.LBFGS, model.parameters())
    with pytest.raises(ValueError, match="learning rate"):
        RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=-1.0)
    with pytest.raises(TypeError, match=r"a parameter is a Parameter of shape \(\d.*\) on cpu; .* is for sharded ones"):
        RemoteOptimizer(torch.optim.AdamW, module.parameters())
    rows = model(x)
    for twice in (rows.sum(), rows.sum()):
        twice.backward()
    with pytest.raises(RuntimeError, match="second backward pass"):
        mesh.ones(1).item()


def _optimizers() -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    return [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "fused": True}),
        (torch.optim.RMSprop, {"lr": 1e-2, "foreach": True}),
        (torch.optim.Adafactor, {"lr": 1e-2}),
    ]


@pytest.mark.parametrize(("cls", "options"), _optimizers(), ids=lambda one: getattr(one, "__name__", ""))
def test_optimizers_and_groups_with_rates_of_their_own(mesh: Mesh, cls: Any, options: dict[str, Any]) -> None:
    inputs, targets = batches(4)
    assert (cls in BY_ELEMENT) == (cls is not torch.optim.Adafactor)

    def groups(model: Any) -> list[dict[str, Any]]:
        return [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 3e-3}]

    one = network()
    expected = losses(one, cls(groups(one), **options), inputs, targets, halves=1)
    for kwargs in (_LOCAL["plain"], {"plan": _PLAN}):
        model = module_to_mesh(network(), mesh, remote=True, **kwargs)
        optimizer = RemoteOptimizer(cls, groups(model), **options)
        found = losses(model, optimizer, _sent(mesh, inputs), _sent(mesh, targets), halves=1)
        assert found == pytest.approx(expected, rel=1e-5)


class _Elsewhere(nn.Module):
    """Returns something else on the ranks than in the program."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.result = result
        self.program = os.getpid()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        if os.getpid() == self.program:
            return y
        return (y, y) if self.result == "two" else self.result


@pytest.mark.parametrize(("result", "num"), [(None, 0), ("text", 0), ("two", 2)])
def test_a_module_that_returns_something_else_on_the_ranks_says_so(mesh: Mesh, result: object, num: int) -> None:
    model: Any = module_to_mesh(_Elsewhere(result), mesh, remote=True, out_spec=["dp"])
    with pytest.raises(
        RuntimeError, match=f"returned {num} tensors on this rank, and 1 where the program asked it for"
    ):
        model(distribute(torch.ones(4, 6), mesh, ["dp"])).sum().item()
    mesh.sync()
