"""A small training on a mesh of data x tensor parallel ranks, with all that a heal must bring back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from monarch_hpc.distributed import Mesh, distribute, module_to_mesh

__all__ = ["GridTraining"]


class GridTraining:
    """A network with dropout, batch norm, clipping, AdamW and a schedule; its loop is that of its users.

    Args:
        mesh: with the dimensions ``dp`` and ``tp``.
        num_steps: number of batches.
        captured: whether steps are captured.
    """

    def __init__(self, mesh: Mesh, num_steps: int, *, captured: bool = False) -> None:
        torch.manual_seed(1)
        # Before a norm a bias has no gradient but rounding errors, which AdamW would make steps of.
        first = nn.Linear(6, 8, bias=False)
        module = nn.Sequential(first, nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.25), nn.Linear(8, 3))
        plan: dict[str, Any] = {"0.weight": ["tp", None], "1.bias": ["tp"], "4.weight": [None, "tp"]}
        self.mesh = mesh
        self.model = module_to_mesh(module, mesh, plan)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        torch.manual_seed(2)
        self.batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(num_steps)]
        mesh.manual_seed(3)
        mesh.commit()
        self.on_ranks: Any = mesh.capture(self._on_ranks) if captured else self._on_ranks

    def step(self, x: torch.Tensor, y: torch.Tensor, before_step: Callable[[Mesh], None] | None = None) -> float:
        """One batch; its loss. *before_step* is called before the optimizer's."""
        rows, labels = (distribute(part, self.mesh, ["dp"]) for part in (x, y))
        loss: Any = self.on_ranks(rows, labels, before_step)
        self.schedule.step()
        return float(loss.item())

    def _on_ranks(self, rows: Any, labels: Any, before_step: Callable[[Mesh], None] | None) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(rows), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if before_step is not None:
            before_step(self.mesh)
        self.optimizer.step()
        return loss

    def state(self) -> list[torch.Tensor]:
        """All parameters, buffers, and what the optimizer keeps."""
        states = [self.optimizer.state.get(param, {}) for param in self.model.parameters()]
        moments = [state[name] for state in states for name in sorted(state)]
        tensors: Sequence[Any] = [*self.model.parameters(), *self.model.buffers(), *moments]
        return [one.full_tensor().detach() if hasattr(one, "_h") else one.clone() for one in tensors]
