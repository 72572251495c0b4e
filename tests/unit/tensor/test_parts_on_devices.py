"""Sharded tensors whose parts are on another device than the CPU: torch refuses an operator on parts of two devices.

Device ``meta`` stands for a GPU: it has shapes, and no elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from monarch_hpc.tensor.local.collectives import LocalGroup, Meetings
from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.healing.journal import Journal
from monarch_hpc.tensor.worker.healing.state import blank_like, describe_values, memory_of, rebuild, window
from monarch_hpc.tensor.worker.sharded import calls
from monarch_hpc.tensor.worker.sharded.device_mesh import make_device_mesh
from monarch_hpc.tensor.worker.sharded.rules import ShardedOps
from monarch_hpc.tensor.worker.sharded.settling import settle_gradients
from monarch_hpc.tensor.worker.values import Values

DEVICE = torch.device("meta")
SPEC = MeshSpec(1 << 40, ("dp",), (1,), (0,), 0, "meta")


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardedOps]:
    """A mesh of one rank."""
    monkeypatch.setattr("monarch_hpc.tensor.worker.sharded.rules.to_host", lambda tensor: torch.ones(tensor.shape))
    turns: Any = None  # a rank that is alone waits for none
    mesh = make_device_mesh(SPEC, 0, lambda ranks: LocalGroup(Meetings(turns), ranks, 0))
    made = ShardedOps(mesh, 0, device=DEVICE)
    made.journal = Journal(Values())
    with calls.entered(made):
        yield made


def on_device(*trees: Any) -> bool:
    """Whether all tensors are sharded ones with their parts there."""
    return all(isinstance(one, DTensor) and one._local_tensor.device == DEVICE for one in tree_leaves(trees))


def made(kind: str, *shape: int, grads: bool = False, fill: Any = None) -> DTensor:
    return calls.made(kind, shape, (0,), torch.float32, fill, grads)


def test_a_training_step_stays_on_the_device(ops: ShardedOps) -> None:
    weights = [made("randn", 8, 8, grads=True), made("full", 8, fill=0.5, grads=True)]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, foreach=False)
    x = calls.global_from_shards(torch.zeros(4, 8), (0,), (4, 8), (8, 1), False)
    target = ops.wrap(torch.zeros(4, dtype=torch.int64))
    hidden: Any = nn.functional.dropout(nn.functional.gelu(x @ weights[0] + weights[1]), 0.5)
    loss: Any = nn.functional.cross_entropy(hidden, target)
    loss.backward()
    settle_gradients(weights)
    grads = [weight.grad for weight in weights]
    norm = nn.utils.clip_grad_norm_(weights, 1.0, foreach=False)
    optimizer.step()
    assert on_device(weights, x, hidden, loss, grads, norm)
    assert calls.whole(loss).device == calls.shard(hidden).device == DEVICE


def test_random_numbers_are_drawn_in_host_memory(ops: ShardedOps) -> None:
    x = made("full", 4, 8, fill=0.5)
    before = ops.random_state
    drawn = [
        torch.bernoulli(x),
        torch.rand_like(x),
        torch.randn_like(x, device="cpu"),
        x.normal_(),
        torch.multinomial(x, 2),
    ]
    assert on_device(drawn) and ops.random_state is not before


def test_attention_of_gpus_runs_there_if_it_draws_nothing(ops: ShardedOps) -> None:
    """The operators that GPUs have for it are random ones to torch, and CPUs do not have them."""
    q = made("full", 2, 4, 8, 16, fill=0.5, grads=True)
    attend: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    assert on_device(attend(q, q, q, None, True))
    with pytest.raises(NotImplementedError, match="write it as matmul, softmax and dropout"):
        attend(q, q, q, None, True, 0.1)


def test_operators_that_gather_and_devices_that_the_program_names(ops: ShardedOps) -> None:
    x = made("randn", 6, 5)
    found = [
        x.sort()[0],
        x.view(30)[2:7],
        x.to("cpu"),
        torch.zeros_like(x, device="cpu"),
        x.new_ones(2),
        x.t().cumsum(0),
    ]
    x[1:3] = 0
    assert on_device(found, x)


def test_what_a_heal_moves_comes_back_to_the_device(ops: ShardedOps) -> None:
    values = Values()
    values[1] = made("randn", 4, 4, grads=True)
    sharding: Any = type("Held", (), {"ops": ops, "held": (ops.mesh, SPEC)})
    piece = describe_values(values, {7: sharding}).pieces[1]
    memory = memory_of(values[1])
    assert memory.device == DEVICE and window(piece, memory).device == DEVICE
    assert on_device(rebuild(piece, memory, ops.mesh), blank_like(piece, ops))
