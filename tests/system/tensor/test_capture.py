"""Captured steps on two procs: equal to steps as written, replayed only where they are, and else with a reason."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from monarch_hpc.tensor import compile as tensor_compile
from monarch_hpc.tensor import inspect, random, remote, sync

_GET_S = 60.0


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Mesh:
    """The procs as a mesh for sharded tensors."""
    return Mesh(procs=procs, commit=False)


def network() -> nn.Module:
    """A small network with random numbers in its steps."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.25), nn.Linear(16, 3))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
}


def trained(
    model: nn.Module, x: Any, make: Callable[[Any], torch.optim.Optimizer], wrap: Any, average: Callable[[Any], object]
) -> tuple[list[Any], Any]:
    """Losses of 8 steps with dropout, clipping and a schedule of learning rates, and the step."""
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(batch: Any) -> Any:
        loss = (model(batch) - batch[:, :3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            average(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    run = wrap(step)
    losses = []
    for _ in range(8):
        losses.append(run(x))
        schedule.step()
    return losses, run


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_on_each_rank_equals_the_one_as_written(procs: ProcMesh, name: str) -> None:
    found: list[Any] = []
    for wrap in (lambda step: step, procs.capture):
        with procs.activate():
            random.manual_seed(5)
            model = network()
            parameter: Any
            for parameter in model.parameters():
                parameter.data = parameter.detach().slice_mesh(dp=0).to_mesh(procs)
            x = (torch.arange(48.0).reshape(8, 6) / 48) * (procs.rank("dp") + 1)
            losses, run = trained(model, x, OPTIMIZERS[name], wrap, lambda grad: grad.reduce_("dp", "avg"))
        state = dict(model.state_dict())
        found.append([inspect([losses, state], dp=rank) for rank in range(2)])
    assert (run.num_replays, run.reason) == (5, "")
    for one, other in zip(*found, strict=True):
        assert one[0] == other[0]
        assert all(torch.equal(one[1][key], other[1][key]) for key in state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_on_sharded_tensors_equals_the_one_as_written(mesh: Mesh, name: str) -> None:
    found: list[Any] = []
    for wrap in (lambda step: step, mesh.capture):
        mesh.manual_seed(5)
        model = module_to_mesh(network(), mesh, plan={"0.weight": ["dp"], "0.bias": ["dp"]})
        x = distribute(torch.arange(48.0).reshape(8, 6) / 48, mesh, ["dp"])
        losses, run = trained(model, x, OPTIMIZERS[name], wrap, lambda grad: grad)
        state: Any = model.state_dict()
        found.append([[loss.item() for loss in losses], {key: state[key].full_tensor() for key in state}])
    assert (run.num_replays, run.reason) == (5, "")
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][key], found[1][1][key]) for key in state)


def test_a_step_of_a_module_on_the_ranks_equals_the_one_as_written(mesh: Mesh) -> None:
    def trained_there(wrap: Any) -> tuple[list[float], dict[str, Any], Any]:
        mesh.manual_seed(5)
        model = module_to_mesh(network(), mesh, remote=True)
        optimizer = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        x = distribute(torch.arange(48.0).reshape(8, 6) / 48, mesh, ["dp"])

        def step(batch: Any) -> Any:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run, losses = wrap(step), []
        for number in range(8):
            if number == 5:  # the ranks must be told of training, and of evaluation before it
                model.eval()
                model(x)
                model.train()
            losses.append(run(x))
            schedule.step()
        state: Any = model.state_dict()
        return [loss.item() for loss in losses], {key: state[key].full_tensor() for key in state}, run

    written, captured = trained_there(lambda step: step), trained_there(mesh.capture)
    assert written[0] == captured[0]
    assert all(torch.equal(written[1][key], captured[1][key]) for key in written[1])
    assert (captured[2].num_replays, captured[2].reason) == (5, "")


def test_a_replay_is_one_message_and_leaves_nothing(procs: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with procs.activate():
        model = network()
        x = torch.randn(4, 6)
        engine = x._h.view.engine  # type: ignore[attr-defined]

        @procs.capture
        def step(batch: Any) -> Any:
            loss = model(batch).sum()
            loss.backward()
            return loss

        for _ in range(4):
            step(x)
        gc.collect()  # what earlier tests have left
        sync(procs)
        held = inspect(values_held())
        sent: list[int] = []
        send = engine.send
        with monkeypatch.context() as patch:
            patch.setattr(engine, "send", lambda **options: sent.append(len(engine.ints)) or send(**options))  # type: ignore[func-returns-value]
            for _ in range(20):
                step(x)
        assert len(sent) == 20 and max(sent) < 20  # integers
        sync(procs)
        assert step.num_replays == 21
        assert inspect(values_held()) - held < 20
        count = inspect(templates_held())
        del step

        @procs.capture
        def other(batch: Any) -> Any:
            return batch * 2

        gc.collect()
        other(x)
        assert inspect(templates_held()) <= count  # it was forgotten, and one of the new ones is known


def test_a_replay_that_is_read_each_time_leaves_with_the_read(procs: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with procs.activate():
        x = torch.randn(4)
        engine = x._h.view.engine  # type: ignore[attr-defined]
        monkeypatch.setattr(engine, "config", replace(engine.config, flush_s=_GET_S))
        step = procs.capture(lambda batch: batch + 1)
        for _ in range(4):
            inspect(step(x))
        sync(procs)
        sent: list[bool] = []
        send = engine.send
        with monkeypatch.context() as patch:
            patch.setattr(engine, "send", lambda **options: sent.append(bool(options.get("read"))) or send(**options))  # type: ignore[func-returns-value]
            for _ in range(3):
                assert inspect(step(x)).tolist() == inspect(x + 1).tolist()
            assert sent == [True] * 6
            sent.clear()
            for _ in range(4):
                step(x)  # the first one waits for a read, the others do not
            assert sent == [False] * 3


def worker_of() -> Any:
    """The worker of this proc."""
    from monarch_hpc.tensor.worker.sharing import local

    return next(reversed(local._states.values()))


@remote(propagate=lambda: torch.zeros((), dtype=torch.int64, device="meta"))
def values_held() -> torch.Tensor:
    """The number of values on a rank."""
    return torch.tensor(len(worker_of()._values))


@remote(propagate=lambda: torch.zeros((), dtype=torch.int64, device="meta"))
def templates_held() -> torch.Tensor:
    """The number of programs on a rank."""
    return torch.tensor(sum(type(one).__name__ == "ReplayedProgram" for one in worker_of()._templates.values()))


def test_what_a_step_reads_is_guarded(procs: ProcMesh) -> None:
    with procs.activate():
        model: Any = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
        scale = 2.0

        class Config:
            shift = 0.0

        config = Config()
        config.shift = 1.0

        def written(batch: Any, factor: float = 1.0) -> Any:
            return model(batch) * scale * factor + config.shift

        step = procs.capture(written)

        def check(num_replayed: int, *args: Any) -> None:
            before = step.num_replays
            for _ in range(4):
                random.manual_seed(3)
                got = step(*args)
                random.manual_seed(3)
                assert torch.equal(inspect(got, dp=1), inspect(written(*args), dp=1))
            assert (step.num_replays - before, step.reason) == (num_replayed, "")

        x, y = torch.randn(5, 6), torch.randn(3, 6)
        check(2, x)
        check(4, x)
        check(2, y)
        check(2, x, 3.0)
        model.eval()
        check(2, x)
        model.train()
        check(4, x)  # the program of training is kept
        scale = 5.0
        check(2, x)
        config.shift = -1.0
        check(2, x)
        with torch.no_grad():
            check(2, x)
        with torch.autocast("cpu", torch.bfloat16):
            check(2, x)
        model[0] = nn.Linear(6, 4)
        check(2, x)
        model[0].weight = nn.Parameter(torch.ones(4, 6))
        check(2, x)
        model[0].weight.requires_grad_(False)
        check(2, x)
        with torch.no_grad():
            model[0].weight.mul_(2)  # in place: the same tensor
        check(4, x)
        model[1].p = 0.1
        check(2, x)


def test_gradients_flow_through_a_replay_and_state_moves_along(procs: ProcMesh) -> None:
    with procs.activate():
        weight = torch.ones(3, requires_grad=True)
        x = torch.arange(3.0)

        @procs.capture
        def forward(batch: Any) -> Any:
            return (weight * batch).sum(), {"double": batch * 2, "same": batch, "weight": weight, "n": 3}

        for number in range(1, 6):
            weight.grad = None
            loss, rest = forward(x * number)
            loss.backward()
            assert inspect(weight.grad).tolist() == [0, number, 2 * number]
        assert forward.num_replays == 3 and rest["n"] == 3 and rest["weight"] is weight
        assert inspect(rest["double"]).tolist() == [0, 10, 20]

        @procs.capture
        def accumulate(batch: Any) -> None:
            (weight * batch).sum().backward()

        weight.grad = None
        for _ in range(6):
            accumulate(x)
        assert inspect(weight.grad).tolist() == [0, 6, 12]
        assert accumulate.num_replays == 3  # the first call found no gradient


def test_steps_as_written_and_replays_may_alternate(procs: ProcMesh) -> None:
    def state_after(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
        random.manual_seed(11)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        x = torch.randn(2, 4)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

        run = wrap(step)
        for _ in range(2):
            for _ in range(5):
                run()
            step()  # beside the captured one
        return inspect(dict(model.state_dict())), run

    with procs.activate():
        written, _ = state_after(lambda step: step)
        replayed, run = state_after(procs.capture)
    assert all(torch.equal(written[key], replayed[key]) for key in written)
    assert run.num_replays == 5


def test_tensors_of_the_program_and_functions_on_the_ranks(procs: ProcMesh) -> None:
    offset = torch.zeros(3)

    @remote(propagate=lambda x, factor: x)
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    with procs.activate():

        @procs.capture
        def step(batch: Any) -> Any:
            return scaled(batch + offset, 2.0) + torch.tensor([1.0, 2.0, 3.0]) + procs.rank("dp")

        x = torch.ones(3)
        for number in range(6):
            offset.fill_(number)  # what it holds is sent each time
            assert inspect(step(x), dp=1).tolist() == [2 * number + n for n in (4, 5, 6)]
        assert step.num_replays == 4 and step.reason == ""

    @procs.capture
    def double(batch: Any) -> Any:
        return batch * 2

    for number in range(5):  # tensors of the program as arguments
        assert inspect(double(torch.full((2,), float(number)))).tolist() == [2.0 * number] * 2
    assert double.num_replays == 3


def test_a_compiled_function_is_captured_where_it_is_called(procs: ProcMesh) -> None:
    scaled = tensor_compile(lambda x, factor: x * factor)
    first = procs.slice(dp=0)
    for mesh in (procs, first):
        with mesh.activate():
            for _ in range(4):
                assert inspect(scaled(torch.ones(2), 3)).tolist() == [3.0, 3.0]
    x: Any = None
    with procs.activate():
        x = torch.ones(2)
    assert inspect(scaled(x, 3), dp=1).tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="no mesh is active"):
        scaled(3, 4)
