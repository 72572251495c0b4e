"""Random numbers on the ranks of a mesh. Each rank has generators of its own, as processes have."""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.core.arguments import check_number
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.active import active_view, rank_tensor
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.remote_functions import remote

__all__ = ["get_state", "manual_seed", "set_state"]


@remote(propagate=lambda *args: None)
def _seed(seed: int, rank: torch.Tensor | None) -> None:
    torch.manual_seed(seed if rank is None else seed + int(rank))


@remote(propagate=lambda: torch.get_rng_state().to("meta"))
def _get() -> torch.Tensor:
    return torch.get_rng_state()


@remote(propagate=lambda state: None)
def _set(state: torch.Tensor) -> None:
    torch.set_rng_state(state)


def manual_seed(seed: int, *, per_rank: ProcMesh | None = None) -> None:
    """Seed the generators of the ranks of the active mesh; `torch.manual_seed` seeds those of the program.

    Args:
        seed: the seed.
        per_rank: the active mesh, to add each rank's place in it, so that ranks draw different numbers; None to have
            all draw the same.

    Raises:
        ValueError: no mesh is active.
    """
    check_number("seed", seed, least=0)
    _seed(seed, None if per_rank is None else _place(per_rank))
    _note_chosen()


def get_state() -> MeshTensor:
    """The states of the CPU generators of the ranks of the active mesh, for `set_state`.

    Raises:
        ValueError: no mesh is active.
    """
    state: Any = _get()
    found: MeshTensor = state
    return found


def set_state(state: MeshTensor) -> None:
    """Return the generators of the ranks to a state from `get_state`."""
    _set(state)
    _note_chosen()


def _note_chosen() -> None:
    """Note that the program has chosen the random numbers of ranks: a replaced one is worth a warning."""
    view = active_view()
    if view is not None:
        view.engine.is_seeded = True


def _place(mesh: ProcMesh) -> MeshTensor:
    """The place of each rank, row by row."""
    if active_view() is None:
        raise ValueError("no mesh is active: seed in 'with mesh.activate():'")
    place: Any = torch.zeros((), dtype=torch.int64)
    for name, size in mesh.sizes.items():
        place = place * size + rank_tensor(mesh, name)
    found: MeshTensor = place
    return found
