"""A small GPT learns the documentation of this project, character by character, on a mesh and in one process alike.

    monarch-hpc run --local 2 examples/char_gpt.py

The model's Python code runs in this program; its parameters are sharded over ``tp``, its batches over ``dp``. The
program does not mention ranks, and the losses are those of the same loop without a mesh.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import monarch_hpc
from monarch_hpc.distributed import Mesh, distribute, module_to_mesh

NUM_STEPS = 12
BATCH_SIZE, NUM_PLACES, NUM_FEATURES, NUM_HEADS, NUM_BLOCKS = 16, 16, 32, 4, 1
NUM_WARMUP = 5


class Block(nn.Module):
    """Attention and a network. B = batch, T = places, D = features, H = heads, E = features of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(NUM_FEATURES), nn.LayerNorm(NUM_FEATURES)])
        self.query, self.key, self.value, self.out = (nn.Linear(NUM_FEATURES, NUM_FEATURES) for _ in range(4))
        self.up = nn.Linear(NUM_FEATURES, 4 * NUM_FEATURES)
        self.down = nn.Linear(4 * NUM_FEATURES, NUM_FEATURES)

    def forward(self, x_BTD: torch.Tensor, future_TT: torch.Tensor) -> torch.Tensor:
        """The next features."""
        num_B, num_T, num_D = x_BTD.shape
        y_BTD = self.norms[0](x_BTD)
        q_BHTE, k_BHTE, v_BHTE = (
            part(y_BTD).view(num_B, num_T, NUM_HEADS, num_D // NUM_HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores_BHTT = q_BHTE @ k_BHTE.transpose(2, 3) / (num_D // NUM_HEADS) ** 0.5
        found_BHTE = (scores_BHTT + future_TT).softmax(-1) @ v_BHTE
        x_BTD = x_BTD + self.out(found_BHTE.transpose(1, 2).reshape(num_B, num_T, num_D))
        return x_BTD + self.down(functional.gelu(self.up(self.norms[1](x_BTD))))


class GPT(nn.Module):
    """The scores of the next character at each place."""

    def __init__(self, num_chars: int) -> None:
        super().__init__()
        self.chars = nn.Embedding(num_chars, NUM_FEATURES)
        self.places = nn.Parameter(torch.randn(NUM_PLACES, NUM_FEATURES) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm = nn.LayerNorm(NUM_FEATURES)
        self.scores = nn.Linear(NUM_FEATURES, num_chars)
        self.register_buffer("future_TT", torch.full((NUM_PLACES, NUM_PLACES), float("-inf")).triu(1))

    def forward(self, chars_BT: torch.Tensor) -> torch.Tensor:
        """Their logarithms, up to a constant."""
        x_BTD = self.chars(chars_BT) + self.places
        for block in self.blocks:
            x_BTD = block(x_BTD, self.future_TT)
        return self.scores(self.norm(x_BTD))


def sharded_parts() -> dict[str, Any]:
    """The parameters that are split over ``tp``: columns of the first matrix of each pair, rows of the second."""
    plan: dict[str, Any] = {}
    for block in range(NUM_BLOCKS):
        for name in ("query", "key", "value", "up"):
            plan[f"blocks.{block}.{name}.weight"] = plan[f"blocks.{block}.{name}.bias"] = ["tp"]
        for name in ("out", "down"):
            plan[f"blocks.{block}.{name}.weight"] = [None, "tp"]
    return plan


def train(model: nn.Module, batches: list[tuple[Any, Any]]) -> list[float]:
    """Ordinary torch code; return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / NUM_WARMUP))
    losses = []
    for chars_BT, next_BT in batches:
        loss = functional.cross_entropy(model(chars_BT).flatten(0, 1), next_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
    return [loss.item() for loss in losses]


torch.manual_seed(0)
text = "".join(path.read_text() for path in sorted((Path(__file__).parents[1] / "docs").glob("*.md")))
chars = sorted(set(text))
numbers = {char: number for number, char in enumerate(chars)}
text_N = torch.tensor([numbers[char] for char in text])
pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
for _ in range(NUM_STEPS):
    begin_B = torch.randint(0, len(text_N) - NUM_PLACES - 1, (BATCH_SIZE, 1))
    place_BT = begin_B + torch.arange(NUM_PLACES)
    pairs.append((text_N[place_BT], text_N[place_BT + 1]))
gpt = GPT(len(chars))

mesh = Mesh(shape=(2, max(1, len(monarch_hpc.hosts()) // 2)), mesh_dim_names=("dp", "tp"))
on_mesh = module_to_mesh(gpt, mesh, sharded_parts())
begun_s = time.perf_counter()
sharded = train(on_mesh, [(distribute(x, mesh, ["dp"]), distribute(y, mesh, ["dp"])) for x, y in pairs])
taken_s = time.perf_counter() - begun_s
alone = train(gpt, pairs)
for step in range(0, NUM_STEPS, 3):
    print(f"step {step:2d}  loss {sharded[step]:.5f} on the mesh, {alone[step]:.5f} in one process")
print(f"{len(text):,} characters, {sum(p.numel() for p in gpt.parameters()):,} parameters; {mesh}: {taken_s:.1f} s")
difference = max(abs(one - other) for one, other in zip(sharded, alone, strict=True))
if difference > 1e-4 or sharded[-1] > 0.9 * sharded[0]:
    raise SystemExit(f"the losses differ by {difference:.2g}, and end at {sharded[-1]:.3f} from {sharded[0]:.3f}")
