"""Launched zygotes that have not been sent any message, and what they load when they have."""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_hpc.agent.procs.zygote_launch import ZygoteSettings, launch_zygote
from monarch_hpc.agent.procs.zygote_order import receive, render, versions
from monarch_hpc.testing import wait_until

_PATIENCE_S = 60.0


def _status(pid: int) -> int:
    """Wait for a child, and return its exit status."""
    pidfd = os.pidfd_open(pid)
    try:
        assert select.select([pidfd], [], [], _PATIENCE_S)[0], f"process {pid} did not end in {_PATIENCE_S:.0f} s"
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(pidfd)


@pytest.mark.parametrize("entry", ["monarch_hpc.mesh.process:main", "no.such.module:main"])
def test_one_that_nobody_speaks_to_ends_with_its_socket(entry: str) -> None:
    starting = launch_zygote(ZygoteSettings("0" * 32, 0, entry, dict(os.environ)))
    assert starting.stderr_fd == -1
    starting.sock.close()
    assert _status(starting.pid) == 0


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    num_before = len(os.listdir("/proc/self/fd"))
    python = str(tmp_path / "python")
    with pytest.raises(OSError, match=f"{python}: No such file"):
        launch_zygote(ZygoteSettings("0" * 32, 0, "", dict(os.environ)), python)
    assert len(os.listdir("/proc/self/fd")) == num_before


def test_what_another_interpreter_says_is_kept() -> None:
    starting = launch_zygote(ZygoteSettings("0" * 32, 0, "", dict(os.environ)), sys.executable)
    starting.sock.close()
    assert _status(starting.pid) == 0
    assert os.pread(starting.stderr_fd, 1, 0) == b""
    os.close(starting.stderr_fd)


_TELL = """
import gc, json, pathlib
def tell(name):
    path = pathlib.Path(__file__).with_name(name)
    path.with_suffix(".part").write_text(json.dumps([gc.isenabled(), *gc.get_threshold()]))
    path.with_suffix(".part").rename(path)
"""


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", [True, *gc.get_threshold()]),
        ("import gc; gc.set_threshold(900, 5, 4)", [True, 900, 5, 4]),
        ("import gc; gc.disable()", [False, *gc.get_threshold()]),
    ],
)
def test_no_garbage_is_collected_while_modules_load_and_what_they_choose_stays(
    chosen: str, expected: list[object], tmp_path: Path
) -> None:
    (tmp_path / "told.py").write_text(_TELL)
    (tmp_path / "preloaded.py").write_text(f"import told\ntold.tell('during')\n{chosen}\n")
    (tmp_path / "entered.py").write_text("LATER = ['afterwards']\ndef entry(start): return 0\n")
    (tmp_path / "afterwards.py").write_text("import told\ntold.tell('after')\n")
    settings = ZygoteSettings("0" * 32, 0, "entered:entry", {**os.environ, "PYTHONPATH": str(tmp_path)})
    starting = launch_zygote(settings)
    with starting.sock:
        starting.sock.setblocking(True)
        hello = {"entry": settings.entry, "preload": ["preloaded"], "agent_pid": os.getpid(), "versions": versions()}
        starting.sock.sendall(render({**hello, "allocation": settings.allocation, "host": 0}))
        answer = receive(starting.sock)
        assert answer is not None and json.loads(answer[0]) == {"ready": True}
        wait_until("the thresholds afterwards", (tmp_path / "after").exists, _PATIENCE_S)
    assert _status(starting.pid) == 0
    assert json.loads((tmp_path / "during").read_text()) == [True, 0, *gc.get_threshold()[1:]]
    assert json.loads((tmp_path / "after").read_text()) == expected


_FORK = """
import os, sys
from monarch_hpc.agent.children.sweep import cookies, find
from monarch_hpc.agent.procs.zygote_launch import ZygoteSettings, fork_zygote
from monarch_hpc.core.machine.procfs import read_environ
from monarch_hpc.testing import wait_until

zygote = fork_zygote(ZygoteSettings("0" * 32, 3, "monarch_hpc.core.clock:Deadline", dict(os.environ)))
if zygote is None:
    sys.exit(7)
wait_until("its marks are there", lambda: find(cookies("0" * 32, 3)) == [zygote.pid])
assert b"SOME_VARIABLE=x" in read_environ(zygote.pid).split(b"\\0")
zygote.sock.close()
print(os.waitstatus_to_exitcode(os.waitpid(zygote.pid, 0)[1]))
"""


def _run_fork(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _FORK], env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )


@pytest.mark.slow  # starts an interpreter
def test_a_forked_one_is_found_by_its_marks() -> None:
    done = _run_fork({**os.environ, "SOME_VARIABLE": "x", "LONG_VARIABLE": "x" * 300})
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.slow  # starts an interpreter
def test_an_environment_without_room_for_the_marks_forks_none() -> None:
    assert _run_fork({}).returncode == 7


_HOLD = """
import contextlib, os, sys
from monarch_hpc.agent.procs.zygote_launch import ZygoteSettings, fork_zygote
from monarch_hpc.testing import wait_until

key, pipe = os.pipe()
zygote = fork_zygote(ZygoteSettings("0" * 32, 0, "", dict(os.environ)))
os.close(pipe)
assert os.read(key, 1) == b""  # the zygote holds no other end
folder = f"/proc/{zygote.pid}/fd"

def held():
    found = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # it is being closed
            found.append(os.readlink(f"{folder}/{fd}").partition(":")[0])
    return sorted(found)

# The pipe's may be the first that it closes.
print(wait_until("its own", held, accept=lambda found: found == ["/dev/null", "/dev/null", "pipe", "socket"]))
zygote.sock.close()
os.waitpid(zygote.pid, 0)
"""


@pytest.mark.slow  # starts an interpreter
def test_a_forked_one_keeps_no_descriptor_of_its_agent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HOLD],
        env={**os.environ, "SOME_VARIABLE": "x" * 300},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.stdout == "['/dev/null', '/dev/null', 'pipe', 'socket']\n", done.stderr
