"""Losses of rows that are split over ranks: they are those of one process, and gather nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from monarch_hpc.distributed import Mesh, distribute


@pytest.mark.parametrize("spec", [["dp"], [("dp", "tp")], ["tp"]], ids=str)
@pytest.mark.parametrize("num_rows", [8, 7, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 1},
        {"weighted": True},
        {"label_smoothing": 0.1},
    ],
    ids=str,
)
def test_losses_of_split_rows(local: Mesh, spec: Any, num_rows: int, options: Any) -> None:
    torch.manual_seed(num_rows)
    options = dict(options)
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0]) if options.pop("weighted", False) else None
    logits = torch.randn(num_rows, 4, requires_grad=True)
    target = torch.randint(0, 4, (num_rows,))
    target[0] = 2
    given: Any = distribute(logits.detach(), local, spec).requires_grad_()
    placed = None if weight is None else distribute(weight, local)
    loss: Any = functional.cross_entropy(given, distribute(target, local, spec), weight=placed, **options)
    expected = functional.cross_entropy(logits, target, weight=weight, **options)
    assert torch.allclose(loss.full_tensor(), expected, rtol=1e-6)
    (loss.sum() * 3).backward()
    (expected.sum() * 3).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and torch.allclose(given.grad.full_tensor(), logits.grad, rtol=1e-5, atol=1e-7)


def test_a_loss_gathers_nothing(local: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    x: Any = distribute(torch.randn(8, 4), local, ["dp"]).requires_grad_()
    target = distribute(torch.randint(0, 4, (8,)), local, ["dp"])
    with caplog.at_level(logging.WARNING), local.communication() as found:
        loss: Any = functional.cross_entropy(x, target)
        loss.backward()
        assert loss.item() > 0
    assert {row.kind for row in found.rows} == {"all_reduce"} and not caplog.records
    assert sum(row.num_bytes for row in found.rows) == 8


def test_whole_logits_and_split_classes_are_gathered_as_before(local: Mesh) -> None:
    logits, target = torch.randn(6, 4), torch.randint(0, 4, (6,))
    expected = functional.cross_entropy(logits, target)
    for spec, other in ((None, None), ([None, "tp"], None), (["dp"], None), (["dp", "tp"], ["dp"])):
        given: Any = distribute(logits, local, spec)
        found: Any = functional.cross_entropy(given, distribute(target, local, other))
        assert torch.allclose(found.full_tensor(), expected, rtol=1e-6)


@pytest.mark.parametrize("spec", [["dp"], [None, "tp"], [("dp", "tp")], ["dp", "tp"], [None]], ids=str)
@pytest.mark.parametrize("shape", [(8, 4), (7, 4), (8, 3), (1, 1)], ids=str)
def test_a_mean_and_its_gradient(local: Mesh, spec: Any, shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    whole = torch.randn(*shape, requires_grad=True)
    given: Any = distribute(whole.detach(), local, spec).requires_grad_()
    loss = (given * given).mean()
    expected = (whole * whole).mean()
    assert torch.allclose(loss.full_tensor(), expected, rtol=1e-6)
    (loss * 3).backward()
    (expected * 3).backward()  # type: ignore[no-untyped-call]
    assert whole.grad is not None and torch.allclose(given.grad.full_tensor(), whole.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_backward_pass_begins_with_one(local: Mesh, dtype: torch.dtype) -> None:
    builds: list[Any] = [lambda one: one.sum(), lambda one: one.mean(), lambda one: one.mean() * one.sum()]
    for build in builds:
        whole = torch.arange(1, 9, dtype=dtype).reshape(4, 2).requires_grad_()
        given: Any = distribute(whole.detach(), local, ["dp"]).requires_grad_()
        build(given).backward()
        build(whole).backward()
        assert given.grad.dtype == dtype
        assert whole.grad is not None and torch.allclose(given.grad.full_tensor(), whole.grad)
