"""Ranks that die, and programs that notice."""

from __future__ import annotations

import os
import signal
from typing import Any

from monarch_hpc.distributed import Mesh

__all__ = ["die", "read_until_lost"]


def die(mesh: Mesh, rank: int) -> None:
    """Kill a rank."""
    os.kill(mesh.procs.procs[rank].pid, signal.SIGKILL)


def read_until_lost(tensor: Any) -> None:
    """Read sums, in whose collectives ranks may wait for the dead one."""
    for _ in range(10_000):
        tensor.sum().item()
