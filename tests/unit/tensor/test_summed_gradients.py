"""Sums of the gradients of a module on the ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn

from monarch_hpc.tensor.worker.training.gradients import SummedGradients


class _Mesh(NamedTuple):
    """What is asked of a DeviceMesh."""

    mesh_dim_names: tuple[str, ...]
    shape: tuple[int, ...]

    def get_group(self, name: str) -> str:
        return name


def _params() -> list[nn.Parameter]:
    """Three parameters, of which the last one was not used."""
    params = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (), (4,))]
    for param in params[:2]:
        param.grad = torch.ones_like(param)
    return params


def test_a_mesh_of_one_rank_sums_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", None)
    params = _params()
    gradients = SummedGradients(params, [("dp", "tp")] * 3, _Mesh(("dp", "tp"), (1, 1)))
    before = [param.grad for param in params]
    gradients.before_backward()
    gradients.after_backward()
    assert not gradients.is_unsettled
    gradients.settle()
    assert all(param.grad is grad for param, grad in zip(params, before, strict=True))


@pytest.mark.parametrize("other_uses_it", [False, True])
def test_gradients_are_summed_where_they_are_and_made_where_only_others_have_them(
    monkeypatch: pytest.MonkeyPatch, other_uses_it: bool
) -> None:
    groups: list[Any] = []

    def all_reduce(flat: torch.Tensor, group: Any) -> None:
        groups.append(group)
        flat[:7] += 2.0
        if other_uses_it:
            flat[7:11] += 5.0
        flat[-3:] += torch.tensor([1.0, 1.0, float(other_uses_it)])

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    params = _params()
    gradients = SummedGradients(params, [("dp", "tp")] * 3, _Mesh(("dp", "tp"), (2, 1)))
    before = [param.grad for param in params]
    gradients.before_backward()
    gradients.after_backward()
    assert gradients.is_unsettled
    gradients.settle()
    assert groups == ["dp"]  # along tp there is one rank
    for param, grad in zip(params[:2], before, strict=False):
        assert param.grad is grad is not None and torch.equal(grad, torch.full_like(param, 3.0))
    if other_uses_it:
        assert params[2].grad is not None and torch.equal(params[2].grad, torch.full((4,), 5.0))
    else:
        assert params[2].grad is None
