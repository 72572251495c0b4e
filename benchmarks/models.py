"""The models that `benchmarks.training` trains."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

__all__ = ["BATCH", "GPT", "MLP_BATCH", "NUM_CHARS", "NUM_PLACES", "mlp"]

BATCH, NUM_PLACES, NUM_CHARS = 16, 32, 64
MLP_BATCH = 128
_NUM_FEATURES, _NUM_HEADS, _NUM_BLOCKS = 64, 4, 2


class _Block(nn.Module):
    """Attention and a network. B = batch, T = places, D = features, H = heads, E = features of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(_NUM_FEATURES), nn.LayerNorm(_NUM_FEATURES)])
        self.parts = nn.ModuleList(nn.Linear(_NUM_FEATURES, _NUM_FEATURES) for _ in range(4))
        self.up = nn.Linear(_NUM_FEATURES, 4 * _NUM_FEATURES)
        self.down = nn.Linear(4 * _NUM_FEATURES, _NUM_FEATURES)
        self.register_buffer("future_TT", torch.full((NUM_PLACES, NUM_PLACES), float("-inf")).triu(1))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The next features."""
        num_B, num_T, num_D = x_BTD.shape
        y_BTD = self.norms[0](x_BTD)
        q_BHTE, k_BHTE, v_BHTE = (
            part(y_BTD).view(num_B, num_T, _NUM_HEADS, num_D // _NUM_HEADS).transpose(1, 2) for part in self.parts[:3]
        )
        scores_BHTT = q_BHTE @ k_BHTE.transpose(2, 3) / (num_D // _NUM_HEADS) ** 0.5
        y_BHTE = (scores_BHTT + self.future_TT).softmax(-1) @ v_BHTE  # DTensor has no rule for torch's own attention
        x_BTD = x_BTD + self.parts[3](y_BHTE.transpose(1, 2).reshape(num_B, num_T, num_D))
        made_BTD: torch.Tensor = x_BTD + self.down(functional.gelu(self.up(self.norms[1](x_BTD))))
        return made_BTD


class GPT(nn.Module):
    """A GPT of two blocks: the scores of the next character at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.chars = nn.Embedding(NUM_CHARS, _NUM_FEATURES)
        self.places = nn.Parameter(torch.randn(NUM_PLACES, _NUM_FEATURES) * 0.02)
        self.blocks = nn.ModuleList(_Block() for _ in range(_NUM_BLOCKS))
        self.norm = nn.LayerNorm(_NUM_FEATURES)
        self.scores = nn.Linear(_NUM_FEATURES, NUM_CHARS)

    def forward(self, chars_BT: torch.Tensor) -> torch.Tensor:
        """Their logarithms, up to a constant."""
        x_BTD = self.chars(chars_BT) + self.places
        for block in self.blocks:
            x_BTD = block(x_BTD)
        scores: torch.Tensor = self.scores(self.norm(x_BTD))
        return scores


def mlp() -> nn.Module:
    """A classifier of 256 features, with three layers between."""
    sizes = (256, 512, 512, 512)
    layers = [layer for one, two in itertools.pairwise(sizes) for layer in (nn.Linear(one, two), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(512, 10))
