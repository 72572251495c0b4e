"""A GPT in parallel three ways, 2 x 2 x 2 ranks: stages of layers, parts of layers, and parts of batches.

    monarch-hpc run --local 2 examples/gpt_dp_tp_pp.py

Each stage is a module that lives on its ranks, where torch's own `parallelize_module` splits it over ``tp``; gradients
are summed over ``dp``. The schedule of the pipeline is a loop in this program, and `backward()` goes through the
stages. The losses are those of one process.
"""

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import monarch_hpc
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh

NUM_STEPS, NUM_MICRO = 4, 4
BATCH_SIZE, NUM_PLACES, NUM_FEATURES, NUM_HEADS, NUM_CHARS = 16, 8, 32, 4, 32
HEAD = NUM_FEATURES // NUM_HEADS


class Block(nn.Module):
    """Attention and a network. B = batch, T = places, D = features, H = heads here, E = features of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(NUM_FEATURES), nn.LayerNorm(NUM_FEATURES)])
        self.query, self.key, self.value, self.out = (nn.Linear(NUM_FEATURES, NUM_FEATURES) for _ in range(4))
        self.up = nn.Linear(NUM_FEATURES, 4 * NUM_FEATURES)
        self.down = nn.Linear(4 * NUM_FEATURES, NUM_FEATURES)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The next features; with some of the heads, if there are others on other ranks."""
        y_BTD = self.norms[0](x_BTD)
        q, k, v = (part(y_BTD).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.query, self.key, self.value))
        found_BHTE = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(found_BHTE.transpose(1, 2).flatten(2))
        return x_BTD + self.down(functional.gelu(self.up(self.norms[1](x_BTD))))


class First(nn.Module):
    """The first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.chars, self.block = nn.Embedding(NUM_CHARS, NUM_FEATURES), Block()

    def forward(self, chars_BT: torch.Tensor) -> torch.Tensor:
        """Features."""
        return self.block(self.chars(chars_BT))


class Last(nn.Module):
    """The last stage."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.scores = Block(), nn.Linear(NUM_FEATURES, NUM_CHARS)

    def forward(self, x_BTD: torch.Tensor, next_BT: torch.Tensor) -> torch.Tensor:
        """The loss of each sequence."""
        scores_BCT = self.scores(self.block(x_BTD)).transpose(1, 2)
        return functional.cross_entropy(scores_BCT, next_BT, reduction="none").mean(1)


def split_layers(stage: Any, mesh: Any) -> None:
    """Split the block of a stage over ``tp``; on the ranks."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    parallelize_module(stage.block, mesh["tp"], {**columns, "out": RowwiseParallel(), "down": RowwiseParallel()})


torch.manual_seed(0)
first, last = First(), Last()
chars_SMBT = torch.randint(0, NUM_CHARS, (NUM_STEPS, NUM_MICRO, BATCH_SIZE, NUM_PLACES + 1))
preload = ["torch", "torch._dynamo", "torch.distributed.tensor.parallel"]  # once on each host, not in each rank
procs = monarch_hpc.hosts().flatten("hosts").spawn_procs({"procs": 8 // len(monarch_hpc.hosts())}, preload=preload)
grid = procs.flatten("ranks").split(ranks=("pp", "dp", "tp"), pp=2, dp=2, tp=2)
meshes = Mesh(procs=grid.slice(pp=0)), Mesh(procs=grid.slice(pp=1))
options: Any = {"remote": True, "parallelize": split_layers, "out_spec": ["dp"]}
stages = module_to_mesh(first, meshes[0], **options), module_to_mesh(last, meshes[1], **options)
optimizers = [RemoteOptimizer(torch.optim.AdamW, stage.parameters(), lr=1e-2) for stage in stages]


def forward(chars_BT: torch.Tensor) -> Any:
    """Issue the forward pass of a part of a batch; waits for nothing."""
    x_BTD = stages[0](distribute(chars_BT[:, :-1], meshes[0], ["dp"])).to_local(["dp"])
    x_BTD = x_BTD.to_mesh(grid.slice(pp=1)).to_global(["dp"])
    return stages[1](x_BTD, distribute(chars_BT[:, 1:], meshes[1], ["dp"])).mean() / NUM_MICRO


begun_s, found = time.perf_counter(), []
for chars_MBT in chars_SMBT:
    for optimizer in optimizers:
        optimizer.zero_grad()
    losses = [forward(chars_MBT[0])]
    for chars_BT in chars_MBT[1:]:  # one forward, one backward: at most two parts are in memory
        losses.append(forward(chars_BT))
        losses[-2].backward()
    losses[-1].backward()
    for optimizer in optimizers:
        optimizer.step()  # sums gradients over dp, once
    found.append(sum(loss.item() for loss in losses))
taken_s = time.perf_counter() - begun_s
both, alone = torch.optim.AdamW([*first.parameters(), *last.parameters()], lr=1e-2), []
for chars_MBT in chars_SMBT:
    both.zero_grad()
    loss = last(first(chars_MBT.flatten(0, 1)[:, :-1]), chars_MBT.flatten(0, 1)[:, 1:]).mean()
    loss.backward()
    both.step()
    alone.append(loss.item())
    print(f"loss {found[len(alone) - 1]:.5f} on 2 x 2 x 2 ranks, {alone[-1]:.5f} in one process")
print(f"{grid.extent}: {taken_s:.1f} s")
difference = max(abs(one - other) for one, other in zip(found, alone, strict=True))
if difference > 1e-4 or alone[-1] > alone[0]:
    raise SystemExit(f"the losses differ by {difference:.2g}")
