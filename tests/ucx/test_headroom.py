"""UCX is not loaded or started in a process that has no room for it, where it would end the process."""

from __future__ import annotations

import json
import os

import pytest

from tests.ucx.installed import LIBRARIES, run_python

# Each round is a forked child, which loads UCX with so much left, or starts it with so much left after loading it.
ROUNDS = """
import json, os, resource, sys
from pathlib import Path
from monarch_hpc.transport.ucx.front import place
from monarch_hpc.transport.ucx.library import load_library

libucp, limited, loaded, *lefts = sys.argv[1:]
os.environ.update(UCX_TLS="self,posix,tcp", UCX_NET_DEVICES="lo", UCX_LOG_LEVEL="fatal")

def use(left: int) -> str:
    if loaded == "loaded":
        assert load_library(libucp).path
    if limited == "memory":
        which, used = resource.RLIMIT_AS, int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        left *= 1 << 16
    else:
        which, used = resource.RLIMIT_NOFILE, os.dup(0)
    resource.setrlimit(which, (used + left, resource.RLIM_INFINITY if limited == "memory" else used + left))
    try:
        reason = load_library(libucp).reason
        if not reason:
            from monarch_hpc.transport.ucx import _ucx
            _ucx.Worker(1 << 20, place).close()
        return reason or "started"
    except (RuntimeError, OSError, MemoryError) as error:  # no room even for the threads and files of ours
        return f"error {error}"

for left in lefts:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, use(int(left)).encode())
        os._exit(0)
    os.close(writer)
    status, said = os.waitpid(pid, 0)[1], os.read(reader, 4096).decode()
    os.close(reader)
    print(json.dumps([left, status, said]))
"""

# In 64 KiB: from where a thread may start to where UCX ran without the check.
MEMORY = [*map(str, range(150, 420, 14)), "20000"]
DESCRIPTORS = [*map(str, range(3, 18, 2)), "100"]


@pytest.mark.parametrize("libucp", LIBRARIES)
@pytest.mark.parametrize("loaded", ["loaded", "not loaded"])
@pytest.mark.parametrize(("limited", "lefts"), [("memory", MEMORY), ("descriptors", DESCRIPTORS)])
def test_where_there_is_no_room_ucx_is_not_used(libucp: str, limited: str, lefts: list[str], loaded: str) -> None:
    rounds = [json.loads(line) for line in run_python(ROUNDS, libucp, limited, loaded, *lefts).splitlines()]
    assert [(left, status) for left, status, _ in rounds] == [(left, 0) for left in lefts], rounds
    *short, enough = [said for _, _, said in rounds]
    assert enough == "started"
    assert all(said.startswith(("UCX needs ", "error ")) for said in short), short


THREADS = """
import os, resource, sys
from pathlib import Path
from monarch_hpc.transport.ucx.library import load_library
from monarch_hpc.core.process.thread import Thread

resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
os.setresuid(47123, 47123, 47123)
print(load_library(sys.argv[1]).reason)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without processes")
@pytest.mark.parametrize("libucp", LIBRARIES[:1])
def test_where_no_thread_may_start_ucx_is_not_used(libucp: str) -> None:
    reason = run_python(THREADS, libucp)
    assert reason.startswith("UCX needs 4 more threads, and a limit (ulimit -u, a cgroup) leaves 1: "), reason


NO_THREAD = """
import resource
from pathlib import Path
from monarch_hpc.transport.engine.engine import Engine
from tests.system.support.parties import make_fabric

engine = Engine()
engine.start()
fabric = make_fabric(engine, "posix,self")
outcome = []

def start():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    room = 1 << 20  # for small things, but not for the stack of a thread
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
    try:
        fabric.start(outcome.append)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

engine.call_soon(start)
assert engine.wait(lambda: bool(outcome), 30.0), "nobody was told"
fabric.close()
engine.close()
print(*outcome)
"""


@pytest.mark.parametrize("libucp", LIBRARIES[:1])
def test_a_fabric_whose_thread_does_not_start_says_so_and_ends(libucp: str) -> None:
    assert run_python(NO_THREAD) == "UCX does not start: can't start new thread\n"
