"""Traits of operators, of all that this torch has where their schemas say too little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.worker.sharded.traits import traits_of, written_by

aten: Any = torch.ops.aten
_X = torch.randn(4, 3, 2)
_STATISTICS = ("running_mean", "running_var")
_ONLY_READ = {
    *("_batch_norm_impl_index_backward", "batch_norm_backward", "cudnn_batch_norm_backward"),
    *("miopen_batch_norm_backward", "native_batch_norm_backward"),
    *("_batch_norm_no_update", "_native_batch_norm_legit_no_training"),
    *("_batch_norm_with_update_functional", "_native_batch_norm_legit_functional"),
    "_fused_moving_avg_obs_fq_helper_functional",
}
"""Operators that get statistics and leave them as they are."""


def operators() -> Iterator[Any]:
    """All of ATen."""
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            overloads = getattr(aten, schema.name.removeprefix("aten::"), None)
            one = getattr(overloads, schema.overload_name or "default", None)
            if isinstance(one, torch._ops.OpOverload):
                yield one


def test_all_operators_that_get_statistics_are_known_to_write_or_to_read_them() -> None:
    """A new one of torch belongs to `_ONLY_READ` or is written to."""
    found = set()
    for one in operators():
        places = {place for place, argument in enumerate(one._schema.arguments) if "running" in argument.name}
        name = one._schema.name.removeprefix("aten::")
        if places:
            found.add(name)
            assert places.isdisjoint(traits_of(one).written) is (name in _ONLY_READ), one
    assert found >= _ONLY_READ | {"cudnn_batch_norm", "miopen_batch_norm", "batch_norm_gather_stats_with_counts"}


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("native_batch_norm", (True, 0.1, 1e-5)),
        ("batch_norm_update_stats", (0.1,)),
        ("_native_batch_norm_legit", (True, 0.1, 1e-5)),
        ("_native_batch_norm_legit_functional", (True, 0.1, 1e-5)),
        ("_batch_norm_with_update_functional", (0.1, 1e-5)),
        ("_native_batch_norm_legit_no_training", (0.1, 1e-5)),
    ],
)
def test_what_writes_is_said_to_write(name: str, rest: tuple[Any, ...]) -> None:
    op = getattr(aten, name).default
    before = torch.zeros(3), torch.ones(3)
    given = [one.clone() for one in before]
    args = (_X, *given, *rest) if name == "batch_norm_update_stats" else (_X, None, None, *given, *rest)
    op(*args)
    changed = [not torch.equal(one, old) for one, old in zip(given, before, strict=True)]
    written = [any(one is leaf for leaf in written_by(traits_of(op), args, {})) for one in given]
    assert written == changed == [name not in _ONLY_READ] * 2


def test_attention_without_dropout_draws_nothing() -> None:
    traits = traits_of(aten._scaled_dot_product_efficient_attention.default)
    q = torch.empty(0)
    assert traits.random and not traits.has_host_kernel
    assert not traits.draws((q, q, q, None, True), {}) and not traits.draws((q, q, q, None, True, 0.0), {})
    assert traits.draws((q, q, q, None, True, 0.1), {})
    assert traits_of(aten.native_dropout.default).draws((q, 0.0, True), {})
    assert not traits_of(aten.add.Tensor).draws((q, q), {})


def test_random_operators_without_a_kernel_for_cpus_are_those_of_gpus() -> None:
    ours = aten.native_dropout.default, aten.multinomial.default, aten.rand_like.default, aten.bernoulli.p
    assert [traits_of(one).has_host_kernel for one in ours] == [True] * 4
    assert not traits_of(aten._cudnn_rnn.default).has_host_kernel
