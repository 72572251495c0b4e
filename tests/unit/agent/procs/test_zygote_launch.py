"""Launched zygotes that have not been sent any message."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from monarch_hpc.agent.procs.zygote_launch import ZygoteSettings, launch_zygote

_PATIENCE_S = 30.0


@pytest.mark.parametrize("entry", ["monarch_hpc.mesh.process:main", "no.such.module:main"])
def test_one_that_nobody_speaks_to_ends_with_its_socket(entry: str) -> None:
    starting = launch_zygote(ZygoteSettings("0" * 32, 0, entry, dict(os.environ)))
    assert starting.stderr_fd == -1
    starting.sock.close()
    assert starting.process.wait(_PATIENCE_S) == 0


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    num_before = len(os.listdir("/proc/self/fd"))
    python = str(tmp_path / "python")
    with pytest.raises(OSError, match=f"{python}: No such file"):
        launch_zygote(ZygoteSettings("0" * 32, 0, "", dict(os.environ)), python)
    assert len(os.listdir("/proc/self/fd")) == num_before


def test_what_another_interpreter_says_is_kept() -> None:
    starting = launch_zygote(ZygoteSettings("0" * 32, 0, "", dict(os.environ)), sys.executable)
    starting.sock.close()
    assert starting.process.wait(_PATIENCE_S) == 0
    assert os.pread(starting.stderr_fd, 1, 0) == b""
    os.close(starting.stderr_fd)
