from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from monarch_hpc.agent.children.leftovers import Leftover, find_leftovers, kill_leftovers
from monarch_hpc.agent.children.sweep import cookies, sweep
from monarch_hpc.allocation.attempts import attempt_identity
from monarch_hpc.core.machine.procfs import read_environ
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import COOKIE
from tests.child import child

OLD, NEW = "a" * 32, "b" * 32
STEP = "slurmstepd: [7.0]"


class Proc:
    """A folder like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(1, "init")

    def add(self, pid: int, *words: str, **environ: str) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
        (folder / "environ").write_bytes(b"\0".join(f"{key}={value}".encode() for key, value in environ.items()))

    def found(self, uid: int | None = None) -> list[int]:
        return sorted(one.pid for one in find_leftovers(self.root, uid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def agent(allocation: str, attempt: int) -> list[str]:
    words = ["python", "-P", "-m", "monarch_hpc.agent", "--rank", "0", "--attempt", str(attempt)]
    return [*words, "--num-hosts", "2", "--allocation", allocation]


def test_what_has_neither_agent_nor_job_is_left_over(proc: Proc) -> None:
    proc.add(50, "daemon", "--serve", **{COOKIE: attempt_identity(OLD, 1), "SLURM_JOB_ID": "6", "HOME": "/"})
    assert find_leftovers(proc.root) == [Leftover(50, attempt_identity(OLD, 1), "6", "daemon --serve")]
    proc.add(51, "unmarked", SLURM_JOB_ID="6")
    assert proc.found() == [50]
    assert proc.found(uid=os.geteuid() + 1) == []


def test_live_allocations_keep_their_processes(proc: Proc) -> None:
    proc.add(60, *agent(NEW, 2))
    proc.add(61, "proc", **{COOKIE: attempt_identity(NEW, 2), "SLURM_JOB_ID": "8"})
    proc.add(62, "embedded", **{COOKIE: OLD})
    proc.add(63, *agent(OLD, 0))
    assert proc.found() == []
    proc.add(64, "of an earlier attempt", **{COOKIE: attempt_identity(NEW, 1), "SLURM_JOB_ID": "8"})
    assert proc.found() == [64]


def test_a_job_that_an_actor_submitted_is_not_ours(proc: Proc) -> None:
    proc.add(70, "python", "other.py", **{COOKIE: OLD, "SLURM_JOB_ID": "7"})
    assert proc.found() == [70]
    proc.add(71, STEP)
    assert proc.found() == []
    proc.add(72, "slurmstepd: [77.batch]")
    proc.add(73, "of job 70", **{COOKIE: OLD, "SLURM_JOB_ID": "70"})
    assert proc.found() == [73]


def test_who_cannot_see_slurm_ends_nothing(tmp_path: Path) -> None:
    hidden = Proc(tmp_path)
    (tmp_path / "1" / "cmdline").unlink()
    hidden.add(50, "daemon", **{COOKIE: OLD})
    assert hidden.found() == []


@pytest.mark.slow  # starts processes
def test_only_what_still_is_what_it_was_is_killed() -> None:
    with child(subprocess.Popen(["sleep", "600"], env={COOKIE: OLD, "PATH": os.defpath})) as process:
        wait_until("its environment", lambda: read_environ(process.pid))
        assert kill_leftovers([Leftover(process.pid, NEW, "", "")]) == 0
        assert process.poll() is None
        assert kill_leftovers([Leftover(process.pid, OLD, "", ""), Leftover(1 << 22, OLD, "", "")]) == 1
        assert process.wait(30) == -9


@pytest.mark.slow  # starts processes
def test_what_is_within_an_exec_is_looked_at_again(tmp_path: Path) -> None:
    script = tmp_path / "again"
    script.write_text('exec /bin/sh "$0"\n')
    mark = os.urandom(16).hex()
    for _ in range(6):
        with child(subprocess.Popen(["/bin/sh", script], env={COOKIE: mark})) as process:
            assert [one.pid for one in find_leftovers() if one.allocation == mark] == [process.pid]
            assert kill_leftovers([Leftover(process.pid, mark, "", "")]) == 1
            assert process.wait(30) == -9
        with child(subprocess.Popen(["/bin/sh", script], env={COOKIE: mark})) as process:
            assert sweep(cookies(mark), 30.0) == 0
            # Killed by now: it would go on for ever.
            assert process.wait(30) == -9
