"""What this machine has that UCX could use; from files alone, so that it costs nothing to ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "read_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of this machine.

    Attributes:
        rdma: ports of InfiniBand and RoCE devices, as UCX names them: ``mlx5_0:1``.
        nvidia: there is a driver for NVIDIA's GPUs.
        amd: there is a driver for AMD's GPUs.
    """

    rdma: tuple[str, ...] = ()
    nvidia: bool = False
    amd: bool = False


def read_machine(root: Path = Path("/")) -> Machine:
    """Look at this machine, or at what lies under *root*."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    return Machine(
        rdma=tuple(f"{port.parent.parent.name}:{port.name}" for port in ports),
        nvidia=(root / "dev/nvidiactl").exists(),
        amd=(root / "dev/kfd").exists(),
    )
