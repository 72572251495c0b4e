"""Fixtures for all tests: an empty home, no variables of the site, and a check for leaked resources."""

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

# Before its first import, so that failed assertions of the suite say as much as those of test modules.
pytest.register_assert_rewrite("monarch_hpc.testing.conformance")

# The same examples on every run, so that failures are reproducible; no deadline, since slowness is not a failure.
hypothesis.settings.register_profile("house", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("house")

# Time that the kernel may take to end a killed process.
_SETTLE_S = 5.0


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give all tests an empty home, and remove variables of the shell or site for Slurm and monarch-hpc."""
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
        gc.collect()  # closes files held by reference cycles
        ucx = sys.modules.get("monarch_hpc.transport.ucx._ucx")
        if ucx is not None:
            ucx.num_abandoned()  # ends UCX workers whose peers have answered or died meanwhile
        time.sleep(0.01)
    assert not left, f"left behind: {sorted(left)}"


def held() -> set[str]:
    """The child processes, threads and open files of this process."""
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
        # Libraries keep devices such as /dev/urandom open until the process exits.
        if not target.startswith("/dev/"):
            yield f"{entry.name} -> {target}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
