"""Programs inside of a Slurm job that somebody else submitted: `python program.py` takes its hosts, as `run` does."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import HOSTS, Alice, alice, argv, write

__all__ = ["alice"]

PROGRAM = """
import os, sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Asked(Actor):
    @endpoint
    def where(self): return monarch_hpc.context().proc.host, os.environ.get("CUDA_VISIBLE_DEVICES")

asked = monarch_hpc.hosts().spawn_procs().spawn("asked", Asked)
print(sorted(asked.where.call().get().values()), os.listdir(sys.argv[1]), flush=True)
"""
ALL = "0,1,2,3"


def python(alice: Alice, text: str = PROGRAM) -> str:
    return f"{sys.executable} {write(alice, 'program.py', text)} {alice.shared}"


def batch(alice: Alice, command: str, *flags: str) -> tuple[int, str]:
    """Run *command* in a job; return its exit status and output."""
    output = write(alice, "output", "")
    environment = f"ALL,MONARCH_HPC_PATHS__SHARED={alice.shared}"
    status = alice.batch("-t5", "-o", output, "--export", environment, *flags, "--wrap", command)
    return status, Path(output).read_text()


def nothing_left(alice: Alice) -> None:
    def left() -> list[tuple[int, str]]:
        return [process for host in ("login", *HOSTS) for process in alice.lab.processes("alice", host)]

    wait_until("no process", left, 120.0, accept=lambda found: not found)
    assert list(alice.shared.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "srun -N1 -n1 "], ids=["batch script", "step of one task"])
def test_a_program_takes_the_hosts_of_its_job_and_leaves_nothing(alice: Alice, prefix: str) -> None:
    status, printed = batch(alice, prefix + python(alice), "-wn[1-3]", "--exclusive", "--gpus-per-node=4")
    assert (status, printed.partition("]")[0]) == (0, f"[('n1', '{ALL}'), ('n2', '{ALL}'), ('n3', '{ALL}')")
    nothing_left(alice)


def test_so_does_one_in_a_shell_of_salloc(alice: Alice) -> None:
    command = ["salloc", "-Q", "-wn[1-2]", "--exclusive", "--gpus-per-node=2", *python(alice).split()]
    done = alice.lab.run(command, env=alice.environment({}), timeout_s=60)
    assert (done.returncode, done.stdout.partition("]")[0]) == (0, "[('n1', '0,1'), ('n2', '0,1')"), done.stderr
    nothing_left(alice)


def test_each_of_many_tasks_is_refused_and_told_what_to_do(alice: Alice) -> None:
    status, printed = batch(
        alice,
        f"srun -n6 {python(alice)}; srun -n2 {' '.join(argv('run', python(alice).split()[1]))}",
        *("-N3", "--exclusive"),
    )
    assert status == 72, printed
    assert printed.count("this is one of 6 processes that srun started (SLURM_STEP_NUM_TASKS=6)") == 6
    assert printed.count("this is one of 2 processes that srun started") == 2
    assert "srun --nodes=1 --ntasks=1" in printed and "run --local 1 SCRIPT" in printed
    assert not alice.shared.exists()


def test_each_of_many_tasks_may_have_an_embedded_host(alice: Alice) -> None:
    local = " ".join(argv("run", "--local", "1", *python(alice).split()[1:-1], "/"))
    status, printed = batch(alice, f"srun -n2 {local}", "-N2")
    assert status == 0 and printed.count("('local0', ") == 2, printed


def test_without_srun_a_job_of_several_hosts_is_not_one_host(alice: Alice) -> None:
    status, printed = batch(alice, f"PATH=/nowhere {python(alice)}", "-wn[1-2]")
    assert status == 1
    assert "no agent can be started on its 2 host(s) n[1-2]: srun is not on PATH" in printed
    status, printed = batch(alice, f"PATH=/nowhere {python(alice).removesuffix(str(alice.shared))} /", "-N1")
    assert status == 0 and "('local0', " in printed, printed


def test_a_program_that_fails_ends_its_agents(alice: Alice) -> None:
    status, printed = batch(alice, python(alice, PROGRAM + "1 / 0\n"), "-N2")
    assert status == 1 and "ZeroDivisionError" in printed
    nothing_left(alice)


def test_a_killed_program_takes_its_agents_along_and_a_later_job_its_directory(alice: Alice) -> None:
    text = PROGRAM + "print('pid', os.getpid(), flush=True); time.sleep(600)\n"
    output = write(alice, "killed", "")
    environment = f"ALL,MONARCH_HPC_PATHS__SHARED={alice.shared}"
    command = f"{python(alice, text)}; sleep 600"
    alice.slurm("sbatch", "-wn[1-2]", "-t5", "-J", "killed", "-o", output, "--export", environment, "--wrap", command)
    wait_until("the program", Path(output).read_text, 120.0, accept=lambda printed: "pid" in printed)
    (killed,) = [pid for pid, words in alice.lab.processes("alice", "n1") if words.startswith(python(alice, text))]
    os.kill(killed, signal.SIGKILL)
    ours = "monarch_hpc.agent"
    wait_until(
        "no agent",
        lambda: [words for host in HOSTS[:2] for _, words in alice.lab.processes("alice", host) if ours in words],
        120.0,
        accept=lambda left: not left,
    )
    (left,) = alice.shared.iterdir()
    # Its job lives: a program of another one leaves the directory alone.
    other = python(alice)
    status, printed = batch(alice, other, "-N1")
    assert status == 0 and left.name in printed
    # Directories of another cluster, and other directories, are never removed.
    foreign = json.loads((left / "tenant.json").read_text()) | {"cluster": "elsewhere"}
    stays = [
        write(alice, f"shared/{name}/tenant.json", content)
        for name, content in (("a", json.dumps(foreign)), ("b", "[]"))
    ]
    for path in stays:
        Path(path).chmod(0o600)
    alice.slurm("scancel", "--name=killed")
    wait_until("its end", alice.jobs, accept=lambda jobs: not jobs)
    status, printed = batch(alice, other, "-N1")
    assert status == 0 and left.name not in printed, printed
    assert sorted(path.name for path in alice.shared.iterdir()) == ["a", "b"]


def test_a_program_that_holds_the_interpreters_lock_in_its_own_job_lives(alice: Alice) -> None:
    hold = "import ctypes; ctypes.PyDLL(None).usleep(11_000_000); print('held', len(asked.where.call().get()))\n"
    values = {"DEAD_S": 8, "SUSPECT_S": 2, "HEARTBEAT_S": 0.2}
    quick = " ".join(f"MONARCH_HPC_LIVENESS__{name}={value}" for name, value in values.items())
    status, printed = batch(alice, f"{quick} {python(alice, PROGRAM + hold)}", "-N2")
    assert status == 0 and "held 2" in printed, printed
