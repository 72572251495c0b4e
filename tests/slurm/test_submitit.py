"""Submitit in a real cluster: jobs on an allocation, without Slurm jobs, and functions as batch jobs by real sbatch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, count_calls, held, until_printed, write
from tests.system.support.submitit_plugin import plugin_files

__all__ = ["alice", "held"]

CLIENT = """
import sys, time
import submitit

def where():
    environment = submitit.JobEnvironment()
    return environment.hostname, environment.global_rank

def late(number):
    import pathlib
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return number * number

def nap():
    time.sleep(600)

executor = submitit.AutoExecutor("log", cluster="monarch_hpc")
executor.update_parameters(timeout_min=5, nodes=4)
print(executor.submit(where).results(), flush=True)
executor.update_parameters(nodes=1)
jobs = [*executor.map_array(late, range(6)), executor.submit(nap)]
print(*(job.job_id for job in jobs), flush=True)
time.sleep(600)
"""

SECOND = """
import json, pathlib, sys
from monarch_hpc.submitit.job import MonarchHpcJob

*jobs, nap = (MonarchHpcJob("log", job_id) for job_id in sys.argv[1:])
nap.cancel()
error = nap.exception()
pathlib.Path("go").touch()
print(json.dumps([[job.result() for job in jobs], str(error), nap.state]))
"""

SUBMIT = """
import os, sys, time
import monarch_hpc, submitit
from monarch_hpc import Actor, endpoint

class Asked(Actor):
    @endpoint
    def where(self): return monarch_hpc.context().proc.host

class Train:
    def __init__(self): self.starts = 0
    def __call__(self, word):
        self.starts += 1
        asked = monarch_hpc.hosts().spawn_procs().spawn("asked", Asked)
        hosts = sorted(asked.where.call().get().values())
        print("start", self.starts, flush=True)
        if self.starts == 1:
            time.sleep(600)
        return word, self.starts, len(hosts), len(set(hosts))
    def checkpoint(self, word):
        print("checkpoint", flush=True)
        return submitit.helpers.DelayedSubmission(self, word)

def fail():
    raise ValueError("on purpose")

if sys.argv[1:] == ["fail"]:
    job = monarch_hpc.batch(fn=fail, folder="a b", timeout_min=5)
    print(repr(str(job.exception())[-300:]), job.job_id, flush=True)
    job = monarch_hpc.batch(time.sleep, 600, folder="a b", timeout_min=5)
    job.cancel()
    print(str(job.exception()), flush=True)
else:
    print(monarch_hpc.batch(Train(), "it's", nodes=2, folder="a b", timeout_min=5).job_id, flush=True)
    time.sleep(600)
"""

WAIT = """
import sys
from monarch_hpc.submitit.batch import BatchJob

job = BatchJob("a b", sys.argv[2])
if sys.argv[1] == "interrupt":
    job._interrupt()
else:
    print(job.result(), job.num_tasks, flush=True)
"""


def start(alice: Alice, *words: str) -> list[str]:
    """Write her program and our plugin's metadata; return the command line."""
    for name, text in plugin_files().items():
        write(alice, f"plugin/{name}", text)
    name, text, *arguments = words
    return [sys.executable, write(alice, f"{name}.py", text), *arguments]


def environment(alice: Alice) -> dict[str, str]:
    return alice.environment({"PYTHONPATH": str(alice.folder / "plugin"), "PYTHONUNBUFFERED": "1"})


def run(alice: Alice, *words: str) -> str:
    done: subprocess.CompletedProcess[str] = alice.lab.run(
        start(alice, *words), env=environment(alice), folder=alice.folder, timeout_s=180.0
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jobs_on_an_allocation_outlive_their_client(held: Alice) -> None:
    calls = count_calls(held, "sbatch", "srun", "sacct")
    client = held.lab.popen(start(held, "client", CLIENT), env=environment(held), folder=held.folder)
    assert "[('n1', 0), ('n2', 1), ('n3', 2), ('n4', 3)]" in until_printed(client, "('n4', 3)")
    assert client.stdout is not None
    jobs = client.stdout.readline().split()
    client.signal_group(signal.SIGKILL)
    client.communicate(timeout=180)
    results, error, state = json.loads(run(held, "second", SECOND, *jobs))
    assert results == [number * number for number in range(6)]
    assert "has not produced any output (state: CANCELLED)" in error and state == "CANCELLED"
    assert Path(calls).read_text() == ""
    (shown,) = held.status("dev")
    assert isinstance(shown["runs"], list)
    (service,) = (one["run"] for one in shown["runs"])
    assert held.run("cancel", str(service)).returncode == 0
    del held.env["PATH"]  # the counters: the next test finds her as she was
    held.lab.run(["rm", "-r", str(held.folder / "go"), str(held.folder / "log")], check=True)


def test_a_function_is_a_batch_job_that_goes_on_after_its_checkpoint(alice: Alice) -> None:
    client = alice.lab.popen(start(alice, "submit", SUBMIT), env=environment(alice), folder=alice.folder)
    assert client.stdout is not None
    job = client.stdout.readline().strip()
    assert job.isdecimal(), client.communicate(timeout=180)[1]
    client.signal_group(signal.SIGKILL)
    client.communicate(timeout=180)
    log = alice.folder / "a b" / f"{job}_0_log.out"
    wait_until("the first start", lambda: _read(alice, log), 120.0, accept=lambda text: "start 1" in text)
    run(alice, "wait", WAIT, "interrupt", job)
    assert run(alice, "wait", WAIT, "result", job) == '("it\'s", 2, 2, 2) 1\n'
    text = _read(alice, log)
    assert "checkpoint" in text and "start 2" in text
    failed, cancelled = run(alice, "submit", SUBMIT, "fail").split("\n", 1)
    assert "ValueError: on purpose" in failed
    assert "has not produced any output (state: CANCELLED)" in cancelled


def _read(alice: Alice, path: Path) -> str:
    return alice.lab.run(["cat", str(path)]).stdout
