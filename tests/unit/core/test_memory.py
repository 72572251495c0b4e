"""The memory that is left is the least of what the machine and each control group have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.core.machine.memory import memory_left

_STAT = "anon 5\ninactive_file 100\nactive_file 20\nfile 999\n"


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    _write(tmp_path, {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  5000 kB\n"})
    return tmp_path


def _left(root: Path) -> int | None:
    return memory_left(root / "proc", root / "groups")


def test_without_groups_the_machine_counts(machine: Path) -> None:
    assert _left(machine) == 5000 * 1024


def test_the_narrowest_group_on_the_way_up_counts(machine: Path) -> None:
    job = "groups/slurm/job"
    files = {
        "proc/self/cgroup": "0::/slurm/job/step\n",
        f"{job}/memory.max": "1000000\n",
        f"{job}/memory.current": "900000\n",
        f"{job}/memory.stat": _STAT,
        f"{job}/step/memory.max": "max\n",
        f"{job}/step/memory.current": "800000\n",
    }
    _write(machine, files)
    assert _left(machine) == 100_120


def test_the_first_version_of_groups_counts_the_pages_of_those_below(machine: Path) -> None:
    files = {
        "proc/self/cgroup": "7:cpu,memory:/job\n3:cpuset:/\n",
        "groups/memory/job/memory.limit_in_bytes": "1000000\n",
        "groups/memory/job/memory.usage_in_bytes": "400000\n",
        "groups/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 50\ntotal_active_file 3\n",
    }
    _write(machine, files)
    assert _left(machine) == 600_053


@pytest.mark.parametrize(("path", "used", "left"), [("/", 2000, 0), ("/../../of/the/host", 400, 600)])
def test_the_root_of_a_container_counts_whatever_its_path(machine: Path, path: str, used: int, left: int) -> None:
    files = {
        "proc/self/cgroup": f"0::{path}\n",
        "groups/memory.max": "1000\n",
        "groups/memory.current": f"{used}\n",
    }
    _write(machine, files)
    assert _left(machine) == left


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert _left(tmp_path) is None


def test_this_machine_has_some() -> None:
    left = memory_left()
    assert left is not None and left > 0
