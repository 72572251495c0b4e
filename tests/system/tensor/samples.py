"""Programs of ordinary torch functions, whose operators, those of their gradients among them, the sweep runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

__all__ = ["programs", "words"]

# Sizes that divide among 2 x 2 ranks, and sizes that do not: some ranks have less, or nothing.
SIZES = ((8, 4, 12), (5, 7, 3), (6, 1, 9))


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


_UNARY = words(
    """
    abs ceil cos cumsum0 cumprod0 erf exp floor log1p logsumexp0 neg reciprocal relu round rsqrt sigmoid sign sin
    softplus sqrt square tanh trunc isnan isinf isfinite clone contiguous detach t sum mean prod max min std var
    argmax argmin all any norm sum0 sum1 mean0 mean1 amax0 amin1 max0 min1 prod1 std0 var1 argmax0 argmin1 norm0
    all0 any1 sort0 topk0 flip0 roll0 unsqueeze0 unsqueeze1 diagonal trace tril triu logcumsumexp0 median0
    zeros_like ones_like log_softmax0 log_softmax1 softmax0 softmax1 erfinv expm1 logical_not hardtanh leaky_relu
    elu gelu silu logsigmoid hardsigmoid hardswish mish selu celu
    """
)

_BINARY = words(
    """
    add sub mul div pow maximum minimum atan2 eq ne lt le gt ge logical_and logical_or fmod remainder floor_divide
    dist hypot
    """
)

_INPLACE = words(
    """
    add_ sub_ mul_ div_ copy_ clamp_min_
    """
)


def _positive(*shape: int) -> torch.Tensor:
    # Few bits, so that the parts of a sum add up to it.
    return torch.round((torch.rand(*shape) * 0.8 + 0.1) * 4096) / 4096


def _one(name: str, x: torch.Tensor) -> Any:
    dims = [int(name[-1])] if name[-1].isdigit() and name not in ("log1p", "expm1") else []
    plain = name[:-1] if dims else name
    if plain in ("hardtanh", "leaky_relu", "elu", "gelu", "silu", "logsigmoid", "hardsigmoid", "hardswish", "mish") or (
        plain in ("selu", "celu", "softplus")
    ):
        return getattr(functional, plain)(x)
    if plain in ("zeros_like", "ones_like"):
        return getattr(torch, plain)(x)
    if plain == "topk":
        return x.topk(1, 0)
    if plain == "roll":
        return x.roll(1, 0)
    if plain == "norm":
        return torch.linalg.vector_norm(x, 2, dims or None)
    if plain == "flip":
        return x.flip(dims)
    return getattr(x, plain)(*dims)


def _unary(name: str) -> Callable[[tuple[int, ...]], Any]:
    return lambda n: _one(name, _positive(n[0], n[1]).requires_grad_(name not in ("detach", "sign")))


def _binary(name: str) -> Iterator[Callable[[tuple[int, ...]], Any]]:
    grads = name != "floor_divide"  # has no gradient
    yield lambda n: getattr(torch, name)(_positive(n[0], n[1]).requires_grad_(grads), _positive(n[0], n[1]))
    if name != "dist":
        yield lambda n: getattr(torch, name)(_positive(n[0], n[1]), _positive(n[1]))
        if name not in ("maximum", "minimum", "atan2", "hypot", "logical_and", "logical_or"):
            yield lambda n: getattr(torch, name)(_positive(n[0], n[1]), 0.5)


def _inplace(name: str) -> Iterator[Callable[[tuple[int, ...]], Any]]:
    if name == "clamp_min_":
        yield lambda n: _positive(n[0], n[1]).clamp_min_(0.5)
        return
    yield lambda n: getattr(_positive(n[0], n[1]), name)(_positive(n[0], n[1]))
    yield lambda n: getattr(_positive(n[0], n[1]), name)(_positive(n[1]))


def _written(n: tuple[int, ...]) -> None:
    x = _positive(n[0], n[1])
    x.fill_(0.5)
    x.zero_()
    x.addcmul_(_positive(n[0], n[1]), _positive(n[0], n[1]), value=0.3)
    x.addcdiv_(_positive(n[0], n[1]), _positive(n[0], n[1]), value=0.3)
    x.lerp_(_positive(n[0], n[1]), 0.25)
    x.sqrt_()
    x.neg_()
    x.masked_fill_(_positive(n[0], n[1]) > 0.5, 2.0)
    x[1:3] = 4.0
    x[:, 0] = 2.0
    x[torch.tensor([0, 2])] = _positive(2, n[1])
    x.index_put_((torch.tensor([0, 1]), torch.tensor([0, 0])), _positive(2))
    x.index_add_(0, torch.tensor([0, 2]), _positive(2, n[1]))
    x.scatter_(0, torch.zeros(1, n[1], dtype=torch.int64), 3.0)
    x.scatter_add_(0, torch.zeros(1, n[1], dtype=torch.int64), _positive(1, n[1]))
    x[1:3].mul_(10)
    x.t().add_(1)
    x.mul_(2.0).add_(0.5).div_(3.0)


def _viewed(n: tuple[int, ...]) -> Any:
    x: Any = _positive(n[0], n[1], n[2]).requires_grad_()
    yield x.view(-1)
    yield x.reshape(n[0] * n[1], n[2])
    yield x.view(n[0], n[1] * n[2])
    yield x.view(-1, n[1] * n[2])
    yield x.reshape(n[0] * n[1] * n[2])
    yield x.reshape(n[2], n[1], n[0])
    yield x.reshape(n[0] * n[1], n[2]).view(n[0], n[1], n[2])
    yield x.unsqueeze(1).squeeze(1)
    yield x.squeeze()
    yield x.transpose(0, 2)
    yield x.transpose(1, 2).contiguous()
    yield x.permute(2, 0, 1)
    yield x.movedim(0, 1)
    yield x.flatten(1)
    yield x.expand(2, n[0], n[1], n[2])
    yield x[:, :1].expand(n[0], 5, n[2])
    yield x.repeat(2, 1, 1)
    yield x.split(2)
    yield x.split(2, 2)
    yield x.chunk(2, 0)
    yield x.chunk(3, 2)
    yield x.unbind(0)
    yield x.unbind(1)
    yield x[0]
    yield x[1:3]
    yield x[:, 0]
    yield x[..., -1]
    yield x[:, :, ::2]
    yield x.narrow(2, 0, 2)
    yield x.select(0, 1)
    yield x[torch.tensor([0, 2])]
    yield x[:, torch.tensor([0])]
    yield x[torch.tensor([0, 1]), torch.tensor([0, 0])]
    yield x.index_select(0, torch.tensor([0, 2, 2]))
    yield x.gather(0, torch.zeros(2, n[1], n[2], dtype=torch.int64))
    yield x.gather(2, torch.zeros(n[0], n[1], 1, dtype=torch.int64))
    yield x.masked_fill(x > 0.5, 0.0)
    yield x.masked_fill(x[:, :, :1] > 0.5, float("-inf")).exp()
    yield 1 - x
    yield x.new_ones(x.shape) * x + x.new_zeros(x.shape)
    yield torch.where(x > 0.5, x, 0.0 * x)
    yield torch.where(x > 0.5, x, torch.tensor(0.0))
    yield torch.cat([x, x * 2])
    yield torch.cat([x, x * 2], 2)
    yield torch.stack([x, x * 2], 1)
    yield x.clamp(0.2, 0.6)
    yield x.lerp(x * 2, 0.25)
    yield functional.pad(x, (1, 1))
    yield x.sum((0, 2))
    yield x.mean((0, 2), keepdim=True)
    yield x.to(torch.float64)
    yield x.float() + 1
    yield x.double().long()
    yield x.view_as(x)
    yield torch.addcmul(x, x, x)
    yield torch.einsum("abc,adc->abd", x, x)
    yield functional.normalize(x, dim=-1)


def _matrices(n: tuple[int, ...]) -> Any:
    x = _positive(n[0], n[1]).requires_grad_()
    w = _positive(n[2], n[1]).requires_grad_()
    batch = _positive(n[0], n[1], n[2]).requires_grad_()
    yield x @ w.T
    yield x @ x.T
    yield torch.mm(x, w.t())
    yield x @ w[0]
    yield torch.outer(x[:, 0], w[:, 0])
    yield torch.dot(x[0], w[0])
    yield torch.addmm(w[:, 0], x, w.t())
    yield batch @ batch.transpose(1, 2)
    yield torch.bmm(batch, batch.transpose(1, 2))
    yield torch.baddbmm(torch.zeros(1), batch, batch.transpose(1, 2))
    yield functional.linear(x, w, w[:, 0])
    yield functional.linear(batch, _positive(5, n[2]).requires_grad_(), _positive(5))
    yield functional.linear(batch, _positive(5, n[2]).requires_grad_())
    yield functional.embedding(torch.randint(0, n[0], (n[1], 3)), x)
    yield functional.layer_norm(x, (n[1],), w[0], w[0])
    yield functional.layer_norm(batch, (n[2],))
    yield functional.rms_norm(x, (n[1],), w[0])
    yield functional.cross_entropy(x, torch.zeros(n[0], dtype=torch.int64))
    yield functional.cross_entropy(x, torch.zeros(n[0], dtype=torch.int64), reduction="sum")
    yield functional.nll_loss(x, torch.zeros(n[0], dtype=torch.int64), reduction="none")
    yield functional.mse_loss(x, 2 * x.detach())
    yield functional.mse_loss(x, 2 * x.detach(), reduction="sum")
    yield functional.l1_loss(x, 2 * x.detach())
    yield functional.smooth_l1_loss(x, 2 * x.detach())
    yield functional.binary_cross_entropy_with_logits(x, x.detach())
    yield functional.kl_div(x.log_softmax(1), x.detach())
    yield functional.one_hot(torch.zeros(n[0], dtype=torch.int64), 3)
    yield functional.batch_norm(x, torch.zeros(n[1]), torch.ones(n[1]), training=True)
    yield functional.conv1d(batch, _positive(2, n[1], 1).requires_grad_())
    q, k, v = (_positive(n[0], 4, n[2], 4).requires_grad_() for _ in range(3))
    yield functional.scaled_dot_product_attention(q, k, v)
    yield functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield torch.linalg.inv(x.T @ x + torch.eye(n[1]))
    yield torch.fft.fft(x).abs()
    yield torch.bucketize(x, torch.tensor([0.2, 0.6]))
    yield x.cumsum(1)
    yield torch.searchsorted(torch.tensor([0.2, 0.6]), x)
    yield (x > 0.5).sum()
    yield torch.isclose(x, x)
    yield torch.equal(x, x)
    yield torch._foreach_norm([x.detach(), w.detach()])
    yield torch._foreach_add([x.detach(), w.detach()], 1.0)
    yield torch._foreach_mul_([x.detach().clone(), w.detach().clone()], torch.tensor(0.5))


def _all(found: Callable[[tuple[int, ...]], Any], n: tuple[int, ...]) -> list[Any]:
    return list(found(n))


def programs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and programs: their results, of which gradients are taken where there are any."""
    for n in SIZES:
        for name in _UNARY:
            yield f"{name} {n}", partial(_unary(name), n)
        for name in _BINARY:
            for f in _binary(name):
                yield f"{name} {n}", partial(f, n)
        for name in _INPLACE:
            for f in _inplace(name):
                yield f"{name} {n}", partial(f, n)
        yield f"written {n}", partial(_written, n)
        yield f"viewed {n}", partial(_all, _viewed, n)
        yield f"matrices {n}", partial(_all, _matrices, n)
