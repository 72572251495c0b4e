"""The file system of the allocation's directory stalls: what needs no file goes on, and the rest is made up for."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import ActorDied, ActorMesh
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import Faulty

_PATIENCE_S = 60.0
_DEVICE_BYTES = 32 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on a device of its own, which alone can be stalled."""
    if os.geteuid() or not shutil.which("fsfreeze") or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root, and fsfreeze and mkfs.ext4 (apt install util-linux e2fsprogs)")
    image, folder = tmp_path / "image", tmp_path / "disk"
    image.touch()
    os.truncate(image, _DEVICE_BYTES)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no loop device can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: a process that ends may still have a file open there.
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def stalled(disk: Path) -> Iterator[None]:
    """Let all that write to *disk* wait; readers get what is in memory."""
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)


@pytest.fixture
def directory(disk: Path, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure]) -> Iterator[Path]:
    """Three hosts, used by this process."""
    config = load({"procs.stop_s": 1.0, "agent.grace_s": 1.0}).config
    with open_local(3, config, disk / "demo") as directory, contextlib.ExitStack() as after:
        after.callback(Controller.close_any)
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
        yield directory


def spawn_on(host: int) -> ActorMesh[Faulty]:
    return monarch_hpc.hosts().slice(hosts=host).spawn_procs(name=f"on{host}").spawn("faulty", Faulty)


def pid_of(actor: ActorMesh[Faulty]) -> int:
    return int(actor.pid.call_one().get(_PATIENCE_S))


def test_calls_go_on_and_deaths_are_told_while_the_shared_file_system_stalls(disk: Path, directory: Path) -> None:
    near, far = spawn_on(0), spawn_on(2)
    pids = [pid_of(near), pid_of(far)]
    with stalled(disk):
        for _ in range(50):
            assert [pid_of(near), pid_of(far)] == pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ActorDied, match="SIGKILL"):
            pid_of(far)
        status = query_status(directory, _PATIENCE_S)
        assert status is not None and [host["state"] for host in status["hosts"]] == ["alive"] * 3
        fresh = spawn_on(1).pid.call_one()
        assert pid_of(near) == pids[0]
    assert fresh.get(_PATIENCE_S) > 0
    changes = directory / "changes.jsonl"
    wait_until("the death on disk", lambda: "SIGKILL" in changes.read_text())
