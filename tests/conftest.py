"""What holds for every test: no real home, no site's variables, nothing left behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The same examples on every run: a test that fails must fail again. Slow machines are no failures.
hypothesis.settings.register_profile("house", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("house")

# What a process that was told to end may take until the kernel has taken it down.
_SETTLE_S = 5.0


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each file's tests in one process, in their order, and all tests that need a Slurm: they share one lab."""
    with_lab = Path(__file__).with_name("slurm")
    for item in items:
        item.add_marker(pytest.mark.xdist_group("slurm" if item.path.is_relative_to(with_lab) else str(item.path)))


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give all tests an empty home, and take away what the shell or a site says about Slurm and us."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("MONARCH_HPC_", "SBATCH_", "SLURM_", "XDG_")):
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        yield


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a child process, a thread or an open file behind."""
    before = held()
    yield
    end_s = time.monotonic() + _SETTLE_S
    while (left := held() - before) and time.monotonic() < end_s:
        gc.collect()  # what objects in a circle hold open goes with them
        ucx = sys.modules.get("monarch_hpc.transport.ucx._ucx")
        if ucx is not None:
            ucx.num_abandoned()  # ends UCX workers whose peers answer, or have died, by now
        time.sleep(0.01)
    assert not left, f"left behind: {sorted(left)}"


def held() -> set[str]:
    """The child processes, threads and open files that this process has."""
    children = {
        f"child process {pid}" for task in Path("/proc/self/task").iterdir() for pid in _read(task / "children").split()
    }
    threads = {f"thread {thread.name}" for thread in threading.enumerate()}
    return children | threads | {f"open {name}" for name in _open_files()}


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        # Libraries keep devices open for good, such as /dev/urandom.
        if not target.startswith("/dev/"):
            yield f"{entry.name} -> {target}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
