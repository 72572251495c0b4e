"""Casts on more hosts than one agent has behind it: 16 of a real Slurm, each in its own namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.testing.slurmlab import SlurmLab
from tests.slurm.commands import Alice, write

_PROGRAM = """
import os, signal
import monarch_hpc
from monarch_hpc import Actor, ActorDied, endpoint
from monarch_hpc.mesh.program.controller import Controller

class Log(Actor):
    def __init__(self): self.lines = []
    @endpoint
    def write(self, line): self.lines.append(line)
    @endpoint
    def read(self): return self.lines
    @endpoint
    def rank(self): return monarch_hpc.context().proc.rank
    @endpoint
    def end(self, rank):
        if monarch_hpc.context().proc.rank == rank: os.kill(os.getpid(), signal.SIGKILL)
        return rank

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 4})
logs = procs.spawn("log", Log)
assert list(logs.rank.call().get(60).values()) == list(range(64))
sender = Controller.instance().casts
sent, received = sender.num_sent, sender.in_flight.num_received
assert list(logs.rank.call().get(60).values()) == list(range(64))
print("frames", sender.num_sent - sent, "answers", sender.in_flight.num_received - received)
one = logs.slice(hosts=15, gpus=3)
for number in range(20):
    (one if number % 2 else logs).write.broadcast(number)
assert one.read.call_one().get(60) == list(range(20))
failures = logs.end.options(on_error="collect").call(37).get(60).failures()
print("died", [point.rank for point in failures], all(isinstance(error, ActorDied) for error in failures.values()))
"""


@pytest.fixture
def sixteen(slurmlab: SlurmLab, tmp_path: Path) -> Iterator[Alice]:
    """Alice on a lab of 16 hosts; asks for the session's lab to be skipped with it."""
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    with SlurmLab("sixteen", base=tmp_path / "lab", num_hosts=16, tied=True) as lab:
        yield Alice(lab, lab.home() / "casts")


def test_sixteen_hosts_answer_as_one(sixteen: Alice) -> None:
    done = sixteen.run("alloc", "many", "-N", "16", "-t", "10", timeout_s=180)
    assert done.returncode == 0, done.stderr
    done = sixteen.run("run", "-a", "many", write(sixteen, "casts.py", _PROGRAM), timeout_s=180)
    assert done.returncode == 0, done.stderr
    assert "died [37] True" in done.stdout
    # One frame for 64 procs; the answers of a loaded machine come in more than one, but not in 64.
    sent, received = next(line for line in done.stdout.splitlines() if line.startswith("frames")).split()[1::2]
    assert int(sent) == 1
    assert int(received) <= 32
    done = sixteen.run("release", "many", timeout_s=120)
    assert done.returncode == 0, done.stderr
