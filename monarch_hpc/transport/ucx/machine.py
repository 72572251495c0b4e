"""Hardware of this machine that UCX could use; read from files alone, so that it costs nothing."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.core.dataclass import dataclass

__all__ = ["Machine", "read_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of this machine.

    Attributes:
        rdma: ports of InfiniBand and RoCE devices, by UCX's names: ``mlx5_0:1``.
        nvidia: whether there is a driver for NVIDIA GPUs.
        amd: whether there is a driver for AMD GPUs.
    """

    rdma: tuple[str, ...] = ()
    nvidia: bool = False
    amd: bool = False


def read_machine(root: Path = Path("/")) -> Machine:
    """Inspect this machine, or the file tree under *root*."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    return Machine(
        rdma=tuple(f"{port.parent.parent.name}:{port.name}" for port in ports),
        nvidia=(root / "dev/nvidiactl").exists(),
        amd=(root / "dev/kfd").exists(),
    )
