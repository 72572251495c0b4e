"""Shared memory of a run: other users, even of the same primary group, find nothing that they can open."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.system.support.programs import Programs, programs
from tests.ucx.installed import LIBRARIES

__all__ = ["programs"]

# The program reports when shared memory is in use between it and its procs, and goes on using it.
PROGRAM = """
import sys
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value, "ucx_shm_posix" in open("/proc/self/maps").read()

echoes = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2}).spawn("echo", Echo)
while not all(shared for _value, shared in echoes.echo.call(1).get().values()):
    pass
print("shared", flush=True)
while True:
    echoes.echo.call(b"secret" * 1000).get()
"""

RUN = "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'monarch_hpc.cli', 'run', *sys.argv[1:]])"
STRANGER = 47_123
"""A user id without a user."""


def find_sysv(pids: Sequence[int]) -> list[int]:
    """The System V segments that these processes created, or used last."""
    lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return [int(columns[1]) for columns in lines if {int(columns[4]), int(columns[5])} & {*pids}]


def find_mapped(pids: Sequence[int]) -> list[tuple[int, str, str]]:
    """Process, address and file of all shared memory of these processes."""
    found = []
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            columns = line.split(maxsplit=5)
            if len(columns) == 6 and columns[1].endswith("s") and re.search("/dev/shm/|/memfd:|/SYSV", columns[5]):
                found.append((pid, columns[0], columns[5].removesuffix(" (deleted)")))
    return found


def open_as_stranger(pids: Sequence[int], mapped: Sequence[tuple[int, str, str]]) -> list[str]:
    """Return the parts of this memory that another user of our primary group can open."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        opened = ["the stranger failed"]
        try:
            group = os.getgid()
            os.setgroups([])
            os.setgid(group)
            os.setuid(STRANGER)
            opened = [f"sysv {number}" for number in find_sysv(pids) if ctypes.CDLL(None).shmat(number, None, 0) != -1]
            paths = [path for pid, place, file in mapped for path in (file, f"/proc/{pid}/map_files/{place}")]
            paths += [f"/proc/{pid}/fd/{number}" for pid in pids for number in range(256)]
            paths += [f"/proc/{pid}/mem" for pid in pids]
            for path in paths:
                try:
                    os.close(os.open(path, os.O_RDONLY))
                    opened.append(path)
                except OSError:
                    pass
        finally:
            os.write(write_fd, json.dumps(opened).encode())
            os._exit(0)
    os.close(write_fd)
    os.waitpid(child, 0)
    with os.fdopen(read_fd) as answer:
        opened = json.loads(answer.read())
    assert isinstance(opened, list)
    return opened


# Two cases start a run each; the rest is up to `config.tls`, which has its own tests.
@pytest.mark.parametrize("asked", ["", *(pytest.param(tls, marks=pytest.mark.slow) for tls in ("all", "sysv,sm,self"))])
@pytest.mark.parametrize("path", LIBRARIES)
def test_shared_memory_of_a_run_is_for_its_user(programs: Programs, path: str, asked: str) -> None:
    (programs.folder / "shared.py").write_text(PROGRAM)
    env = {"MONARCH_LIBUCP": path, "UCX_TLS": asked}
    # `all` opens tcp, which is for trusted networks only.
    env |= {"MONARCH_HPC_FABRIC__TRUSTED": "true"} if asked == "all" else {}
    program = programs.start(RUN, "--local", "2", "shared.py", env=env)
    programs.until(program, "shared")
    pids = [program.pid, *programs.procs()]
    mapped = find_mapped(pids)
    assert any("ucx_shm_posix" in file for _pid, _place, file in mapped), mapped
    assert not find_sysv(pids)
    if os.getuid():
        pytest.skip("needs root, to become another user")
    assert not open_as_stranger(pids, mapped)
