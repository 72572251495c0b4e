"""Programs and commands on a machine that has run out of something say of what, where, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PATIENCE_S = 120.0

_PROGRAM = """
import monarch_hpc
class One(monarch_hpc.Actor):
    @monarch_hpc.endpoint
    def one(self): return 1
print(monarch_hpc.hosts().spawn_procs({"gpus": 2}).spawn("one", One).one.call().get().values())
"""

WAYS = {"program": [], "run": ["-m", "monarch_hpc.cli", "run", "--local", "1"]}


def _told(command: str, tmp_path: Path, way: str) -> str:
    """What a program writes that fails in the shell command *command*, where ``"$@"`` stands for it."""
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": os.getcwd()}
    for name in ("XDG_RUNTIME_DIR", "SLURM_JOB_ID"):
        environment.pop(name, None)
    done = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, *WAYS[way], str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_descriptors", [9, 12, 16])
def test_too_few_descriptors(tmp_path: Path, way: str, num_descriptors: int) -> None:
    told = _told(f'ulimit -n {num_descriptors}; "$@"', tmp_path, way)
    assert "Too many open files" in told
    assert f"all {num_descriptors} descriptors that the process may have are in use" in told
    assert "raise the limit by 'ulimit -n'" in told


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left_bytes", [0, 8192], ids=["none", "a little"])
def test_no_room_for_temporary_files(tmp_path: Path, way: str, left_bytes: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=64k,mode=0700 small {place}"
    fill = f"{mount} && head -c {(64 << 10) - left_bytes} /dev/zero > {place}/filler"
    told = _told(f'unshare -m bash -c \'{fill}; TMPDIR={place} "$@"\' bash "$@"', tmp_path, way)
    assert f"the file system of {place}/monarch-hpc-" in told and "is full: make room there" in told
