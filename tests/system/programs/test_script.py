"""Scripts for torchrun on a mesh of two embedded hosts: environment, failures, and their end."""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, HostMesh, ProcMesh, ScriptFailed, endpoint, run_script
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
"""Long, because each rank starts an interpreter."""

PREAMBLE = """
import json, os, select, signal, sys, time
rank = int(os.environ["RANK"])

def note(name):
    with open(f"{name}{rank}.part", "w") as file:
        json.dump({"pid": os.getpid(), "parent": os.getppid()}, file)
    os.rename(file.name, f"{name}{rank}")
"""
HANG = "\nnote('hangs')\nsignal.pause()\n"


class Starter(Actor):
    """Starts the event loop of this process, which keeps running and must not count as a leak of a test."""

    @endpoint
    async def start(self) -> None:
        """Does nothing."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")  # as set by Slurm
        hosts = stack.enter_context(controlled(load().config))
        starter = monarch_hpc.this_proc().spawn("starter", Starter)
        starter.start.call_one().get(_PATIENCE_S)
        starter.stop().get(_PATIENCE_S)
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh, folder: Path) -> ProcMesh:
    procs = hosts.spawn_procs(per_host={"gpus": 2}, env={"HERE": str(folder)})
    settle(procs)
    return procs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the scripts."""
    return tmp_path_factory.mktemp("with a space")


@pytest.fixture
def script(folder: Path) -> Path:
    for left in folder.iterdir():
        if left.is_file():
            left.unlink()
    return folder / "train.py"


def write(script: Path, text: str) -> None:
    script.write_text(f"{PREAMBLE}\nos.chdir(os.environ['HERE'])\n{text}")


def hanging(folder: Path, *ranks: int) -> list[int]:
    """Wait until these ranks hang; return their process ids."""
    files = [folder / f"hangs{rank}" for rank in ranks]
    wait_until("the ranks hang", lambda: all(file.exists() for file in files), _PATIENCE_S)
    return [int(json.loads(file.read_text())["pid"]) for file in files]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_script_is_the_main_program_of_a_fresh_process_with_torchruns_environment(
    procs: ProcMesh, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    (script.parent / "sibling.py").write_text("word = 'imported'")
    write(
        script,
        """
import sibling
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR GLOO_SOCKET_IFNAME CUDA_VISIBLE_DEVICES".split()
assert int(os.environ["OMP_NUM_THREADS"]) >= 1
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # only the main thread may
class Local: pass
import pickle; pickle.loads(pickle.dumps(Local()))
print([__name__, __file__, sys.argv[1:], sibling.word, [os.environ[name] for name in names]])
""",
    )
    status = run_script(procs, os.path.relpath(script), ["--lr", "a b"]).get(_PATIENCE_S)
    assert status.sizes == {"hosts": 2, "gpus": 2} and list(status.values()) == [0, 0, 0, 0]
    lines = wait_until("four lines", lambda: out.getvalue().splitlines(), accept=lambda lines: len(lines) == 4)
    for rank, line in enumerate(sorted(lines)):
        prefix, _, content = line.partition("] ")
        assert prefix == f"[r{rank:02d} local{rank // 2}"
        # The host's GPUs, in which the local rank is the index of its own GPU. In actors that is 0: "5,4" for rank 1.
        gpus = ("4,5", "6,7")[rank // 2]
        environment = [str(rank), "4", str(rank % 2), "2", "127.0.0.1", "lo", gpus]
        assert ast.literal_eval(content) == ["__main__", str(script), ["--lr", "a b"], "imported", environment]


def test_the_port_is_free_for_rank_0_and_again_at_the_next_run(procs: ProcMesh, script: Path) -> None:
    write(
        script,
        """
import socket
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(place) as server:
        for _ in range(3):
            server.accept()[0].close()
else:
    for attempt in range(600):
        try:
            socket.create_connection(place).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    else:
        sys.exit("rank 0 does not listen")
""",
    )
    for _ in range(2):
        assert set(run_script(procs, script).get(_PATIENCE_S).values()) == {0}


def test_what_a_rank_raises_is_raised_here_and_ends_the_others(procs: ProcMesh, script: Path) -> None:
    write(
        script,
        """
if rank == 2:
    while not all(os.path.exists(f"hangs{other}") for other in (0, 1, 3)):
        time.sleep(0.01)
    os.unlink(__file__)  # tracebacks show what ran, whatever became of the file
    raise KeyError("lost")  # here
"""
        + HANG,
    )
    future = run_script(procs, script)
    pids = hanging(script.parent, 0, 1, 3)
    with pytest.raises(KeyError, match="lost") as caught:
        future.get(_PATIENCE_S)
    where, ended = caught.value.__notes__
    assert where.startswith("raised by train.py, rank 2 on local1") and 'raise KeyError("lost")  # here' in where
    assert "rank.py" not in where  # the traceback has only frames of the script
    assert ended == "ranks that still ran and were ended: 3"
    assert gone(pids)
    write(script, "")
    assert set(run_script(procs, script).get(_PATIENCE_S).values()) == {0}  # the mesh works as before


@pytest.mark.parametrize(
    ("end", "status", "cause"),
    [
        ("sys.exit(300)", 300 & 0xFF, "exit code 44"),
        ("sys.exit('no data')", 1, "exit code 1: no data"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "signal 9 (SIGKILL)"),
    ],
)
def test_another_status_than_0_fails_with_rank_host_and_cause(
    procs: ProcMesh, script: Path, end: str, status: int, cause: str
) -> None:
    write(script, f"if rank == 1:\n    {end}\n{HANG}")
    with pytest.raises(ScriptFailed) as caught:
        run_script(procs.slice(hosts=0), script).get(_PATIENCE_S)
    assert (caught.value.status, caught.value.cause) == (status, cause)
    assert str(caught.value) == f"train.py, rank 1 on local0 failed: {cause}"


def test_a_death_counts_more_than_the_exceptions_that_it_causes(procs: ProcMesh, script: Path) -> None:
    # The other ranks see the end of rank 0, as collectives would, and may be reported first.
    write(
        script,
        """
if rank == 0:
    note("hangs")
    signal.pause()
while not os.path.exists("hangs0"):
    time.sleep(0.01)
pid = json.load(open("hangs0"))["pid"]
other = os.pidfd_open(pid)
signal.pidfd_send_signal(other, signal.SIGKILL)
select.select([other], [], [])
raise ConnectionError("peer lost")
""",
    )
    with pytest.raises((ScriptFailed, ConnectionError)) as caught:
        run_script(procs.slice(hosts=0), script).get(_PATIENCE_S)
    assert isinstance(caught.value, ScriptFailed) and caught.value.status == -9
    assert "other ranks that failed after it: 1, the first with ConnectionError: peer lost" in caught.value.__notes__


def test_a_killed_proc_takes_its_rank_along_and_ends_the_others(hosts: HostMesh, script: Path) -> None:
    with hosts.spawn_procs(env={"HERE": str(script.parent)}) as procs:
        write(script, HANG)
        future = run_script(procs, script)
        pids = hanging(script.parent, 0, 1)
        os.kill(procs.procs[1].pid, signal.SIGKILL)
        with pytest.raises(ActorDied, match=r"local1.*signal 9"):
            future.get(_PATIENCE_S)
        wait_until("no rank is left", lambda: gone(pids))


def test_cancelling_and_stopping_end_all_ranks(hosts: HostMesh, script: Path) -> None:
    procs = hosts.spawn_procs(env={"HERE": str(script.parent)})
    write(script, HANG)
    future = run_script(procs, script)
    pids = hanging(script.parent, 0, 1)
    assert future.cancel()
    wait_until("no rank is left", lambda: gone(pids))
    with pytest.raises(concurrent.futures.CancelledError):
        future.get()
    for name in ("hangs0", "hangs1"):
        (script.parent / name).unlink()
    future = run_script(procs, script)
    pids = hanging(script.parent, 0, 1)
    procs.stop()
    wait_until("no rank is left", lambda: gone(pids))
    with pytest.raises(ActorDied):
        future.get(_PATIENCE_S)


def test_what_cannot_run_is_refused_before_anything_starts(procs: ProcMesh, script: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train\.py"):
        run_script(procs, script)
    script.write_text("def broken(:\n")
    with pytest.raises(SyntaxError):
        run_script(procs, script)
