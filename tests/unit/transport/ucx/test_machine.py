"""The hardware that UCX could use, as the kernel lists it."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.transport.ucx.machine import Machine, read_machine


def test_a_machine_without_any_has_none(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == Machine()


def test_ports_of_rdma_devices_and_drivers_of_gpus_are_found(tmp_path: Path) -> None:
    for port in ("mlx5_1/ports/1", "mlx5_0/ports/2", "mlx5_0/ports/1"):
        (tmp_path / "sys/class/infiniband" / port).mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "dev/kfd").touch()
    assert read_machine(tmp_path) == Machine(("mlx5_0:1", "mlx5_0:2", "mlx5_1:1"), nvidia=True, amd=True)
