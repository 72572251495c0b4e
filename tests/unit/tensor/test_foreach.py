"""Optimizers that step many small parameters at once, where the program has not chosen."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.foreach import SAME_BITS, steps_at_once
from monarch_hpc.tensor.worker.sharded.device_mesh import bare_device_mesh
from monarch_hpc.tensor.worker.sharded.rules import ShardedOps
from monarch_hpc.tensor.worker.training import optimizers as hosting

_SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (33,), (17, 5), (64, 64), (256,), (2, 3, 4)]
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{}, {"weight_decay": 0.1, "maximize": True}],
    "Adagrad": [{}, {"weight_decay": 0.1, "lr_decay": 0.1}, {"initial_accumulator_value": 0.1, "maximize": True}],
    "Adam": [{}, {"weight_decay": 0.1, "betas": (0.8, 0.95)}, {"amsgrad": True, "maximize": True}],
    "AdamW": [{}, {"weight_decay": 0.1, "betas": (0.8, 0.95)}, {"amsgrad": True, "maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1, "maximize": True}],
    "RMSprop": [{}, {"centered": True}, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}],
    "Rprop": [{}, {"etas": (0.4, 1.3), "maximize": True}],
    "SGD": [
        {},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01, "maximize": True},
    ],
}


def _params(num: int = 8, dtype: torch.dtype = torch.float32, size: int = 4) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size, dtype=dtype)) for _ in range(num)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cls", sorted(SAME_BITS))
def test_steps_at_once_have_the_bits_of_steps_one_by_one(cls: str, dtype: torch.dtype) -> None:
    assert _OPTIONS.keys() == SAME_BITS
    for options in _OPTIONS[cls]:
        torch.manual_seed(1)
        given = [torch.randn(shape, dtype=dtype) for shape in _SHAPES] + [torch.randn(8, 6, dtype=dtype).t()]
        pairs = [[nn.Parameter(one.clone(memory_format=torch.preserve_format)) for one in given] for _ in range(2)]
        make: Any = getattr(torch.optim, cls)
        optimizers = [make(params, foreach=way, **options) for params, way in zip(pairs, (False, True), strict=True)]
        for step in range(12):
            for place, (one, other) in enumerate(zip(*pairs, strict=True)):
                # Without a gradient at times, as the parameters of a layer that was left out.
                one.grad = None if (step + place) % 5 == 0 else torch.randn_like(one)
                other.grad = None if one.grad is None else one.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        for one, other in zip(*pairs, strict=True):
            assert torch.equal(one, other)
            states = [optimizer.state[param] for optimizer, param in zip(optimizers, (one, other), strict=True)]
            assert states[0].keys() == states[1].keys()
            for name, value in states[0].items():
                assert value is states[1][name] is None or torch.equal(value, states[1][name])


def test_few_or_large_parameters_and_what_was_chosen_are_left_as_they_are() -> None:
    group = torch.optim.AdamW(_params()).param_groups[0]
    assert steps_at_once("AdamW", group, group["params"])
    for option in ({"foreach": False}, {"fused": True}, {"differentiable": True}, {"lr": torch.tensor(0.1)}):
        assert not steps_at_once("AdamW", {**group, **option}, group["params"])
    assert not steps_at_once("NAdam", group, group["params"])
    assert not steps_at_once("AdamW", group, _params(2))
    assert not steps_at_once("AdamW", group, _params(dtype=torch.bfloat16))
    assert not steps_at_once("AdamW", group, _params(size=1 << 16))


def test_an_optimizer_on_the_ranks_chooses_again_when_an_option_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = bare_device_mesh(MeshSpec(1, ("dp",), (2,), (0, 1), 0), 0)
    ops = ShardedOps(mesh, 0)
    ops.world = nullcontext
    monkeypatch.setattr(hosting, "current_ops", lambda: ops)
    with ops:
        params: list[Any] = [ops.wrap(param.detach()) for param in _params()]
        groups: list[dict[str, Any]] = [{"params": params, "lr": 0.1}, {"params": [ops.wrap(torch.ones(1))]}]
        hosted = hosting.HostedOptimizer(torch.optim.SGD, groups, {})
        (group, single) = hosted.optimizer.param_groups
        assert group["foreach"] is True and single["foreach"] is None
        hosted.change([(0, "lr", torch.tensor(0.1))])
        assert group["foreach"] is None
        hosted.change([(0, "lr", 0.2)])
        assert group["foreach"] is True and group["lr"] == 0.2
        hosted.change([(0, "foreach", False)])
        hosted.change([(0, "lr", 0.3)])
        assert group["foreach"] is False
