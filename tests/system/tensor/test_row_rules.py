"""Layers of networks on rows that are split over ranks: as in one process, and nothing is gathered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from monarch_hpc.distributed import Mesh, distribute, module_to_mesh


class _Attention(nn.Module):
    """Attention of four heads. B = batch, T = places, D = features, H = heads, E = features of a head."""

    def __init__(self, *, causal: bool = False, mask_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.causal = causal
        self.mask: Any
        self.register_buffer("mask", torch.randn(mask_shape) if mask_shape else None)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x_BTD).view(x_BTD.shape[0], -1, 4, 2).transpose(1, 2) for one in self.projections)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        return found.transpose(1, 2).flatten(2)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(6), (5, 6)),
    "layer norm of two dimensions, without weights": (lambda: nn.LayerNorm((5, 6), elementwise_affine=False), (5, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (5, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 5, 5)),
    "convolution, strided, in groups, without bias": (
        lambda: nn.Conv2d(4, 4, 2, stride=2, groups=2, bias=False),
        (4, 6, 6),
    ),
    "convolution of sequences": (lambda: nn.Conv1d(3, 4, 3), (3, 7)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 2, 2, stride=2), (3, 3, 3)),
    "max pool": (lambda: nn.MaxPool2d(2), (3, 4, 4)),
    "average pool": (lambda: nn.AvgPool2d(2), (3, 4, 4)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(2), (3, 5, 5)),
    "padding": (lambda: nn.ZeroPad2d(1), (2, 3, 3)),
    "attention": (_Attention, (5, 8)),
    "causal attention": (lambda: _Attention(causal=True), (5, 8)),
    "attention with a mask for all": (lambda: _Attention(mask_shape=(5, 5)), (5, 8)),
    "attention with a mask for heads": (lambda: _Attention(mask_shape=(1, 4, 5, 5)), (5, 8)),
    "batch norm": (lambda: nn.BatchNorm1d(6), (6,)),
    "batch norm of images": (lambda: nn.BatchNorm2d(3, momentum=0.3), (3, 4, 4)),
    "batch norm, without weights or statistics": (
        lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False),
        (3, 4, 4),
    ),
    "batch norm in use": (lambda: nn.BatchNorm2d(3).eval(), (3, 4, 4)),
}


def _run(module: Any, x: Any, weights: Any) -> list[Any]:
    """A result, and gradients."""
    found = module(x)
    (found * weights(found)).sum().backward()
    return [found.detach(), x.grad, *(one.grad for one in module.parameters()), *module.buffers()]


@pytest.mark.parametrize("spec", [["dp"], [("dp", "tp")]], ids=str)
@pytest.mark.parametrize("num_rows", [8, 7])
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_as_in_one_process_and_gathers_nothing(
    local: Mesh, name: str, num_rows: int, spec: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make, shape = LAYERS[name]
    if num_rows % 4 and "attention" in name:
        pytest.skip("to view features as heads gathers shards of unlike sizes")
    torch.manual_seed(num_rows)
    alone = make().double()
    for one in alone.parameters():
        nn.init.uniform_(one, 0.5, 1.5)
    module = module_to_mesh(alone, local)
    rows = torch.randn(num_rows, *shape, dtype=torch.float64)
    placed: Any = distribute(rows, local, spec).requires_grad_()

    def weights(found: Any) -> torch.Tensor:
        return torch.linspace(-1, 1, found.numel(), dtype=torch.float64).reshape(found.shape)

    with caplog.at_level(logging.WARNING), local.communication() as counted:
        found = _run(module, placed, lambda one: distribute(weights(one), local, spec))
        local.sync()
    expected = _run(alone, rows.requires_grad_(), weights)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and torch.allclose(one.full_tensor(), other, rtol=1e-9, atol=1e-12)
    assert {row.kind for row in counted.rows} <= {"all_reduce"} and not caplog.records
    assert found[0].placements == found[1].placements == placed.placements


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("spec", "num_rows"), [([None, "dp"], 4), (["dp"], 1), ([("dp", "tp")], 5), (None, 4)], ids=str
)
def test_other_splits_have_the_same_values(local: Mesh, name: str, spec: Any, num_rows: int) -> None:
    make, shape = LAYERS[name]
    if num_rows == 1 and name.startswith("batch norm") and len(shape) == 1:
        pytest.skip("one value for each channel")
    torch.manual_seed(1)
    alone = make().double()
    module = module_to_mesh(alone, local)
    rows = torch.randn(num_rows, *shape, dtype=torch.float64)
    placed: Any = distribute(rows, local, spec).requires_grad_()
    found = _run(module, placed, lambda one: 0.5)
    expected = _run(alone, rows.requires_grad_(), lambda one: 0.5)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.full_tensor(), other, rtol=1e-9, atol=1e-12)


def test_heads_that_are_split_over_ranks_attend_there(local: Mesh) -> None:
    torch.manual_seed(2)
    whole: list[Any] = [torch.randn(4, 4, 5, 2, requires_grad=True) for _ in range(3)]
    placed: list[Any] = [distribute(one.detach(), local, ["dp", "tp"]).requires_grad_() for one in whole]
    with local.communication() as counted:
        found: Any = functional.scaled_dot_product_attention(placed[0], placed[1], placed[2], is_causal=True)
        found.sum().backward()
        local.sync()
    expected = functional.scaled_dot_product_attention(whole[0], whole[1], whole[2], is_causal=True)
    expected.sum().backward()  # type: ignore[no-untyped-call]
    assert not counted.rows and found.placements == placed[0].placements
    for one, other in zip(
        [found, *(one.grad for one in placed)], [expected, *(one.grad for one in whole)], strict=True
    ):
        assert torch.allclose(one.full_tensor(), other, rtol=1e-5, atol=1e-6)


def test_dropout_of_attention_is_that_of_one_process(local: Mesh) -> None:
    q = torch.randn(4, 2, 5, 2)
    torch.manual_seed(5)
    expected = functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    local.manual_seed(5)
    placed: Any = distribute(q, local, ["dp"])
    found: Any = functional.scaled_dot_product_attention(placed, placed, placed, dropout_p=0.5)
    assert torch.allclose(found.full_tensor(), expected, rtol=1e-5, atol=1e-6)
