"""Our commands, run by alice on the login host, with separate state for each test."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab import HostProcess, SlurmLab
from tests.system.support.programs import read_until

HOLD = "exec sleep 600"
HOSTS = ("n1", "n2", "n3", "n4")

SLEEPER = """
import os, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Sleeper(Actor):
    @endpoint
    def ready(self): return os.environ.get("CUDA_VISIBLE_DEVICES")
    @endpoint
    def sleep(self): time.sleep(600)

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})
sleepers = procs.spawn("sleeper", Sleeper)
print("gpus", sorted(set(sleepers.ready.call().get().values())), flush=True)
print("ready", flush=True)
"""
"""Two procs on each host, whose actors print `ready`."""


@dataclass
class Alice:
    """One user with an empty registry and an empty shared folder.

    Args:
        lab: the lab.
        folder: her folder, empty at first.
        env: additions to her environment.
    """

    lab: SlurmLab
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.folder / "state" / "monarch-hpc"

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "MONARCH_HPC_PATHS__SHARED": str(self.shared)}
        return {**own, **self.env, **more}

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 90.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of our commands to its end."""
        return self.lab.run(argv(*arguments), env=self.environment(env or {}), timeout_s=timeout_s)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> HostProcess:
        """Start one of our commands."""
        return self.lab.popen(argv(*arguments), env=self.environment(env or {}))

    def slurm(self, *command: str) -> str:
        """Run one of Slurm's commands and return its output."""
        return self.lab.run(command, check=True).stdout

    def status(self, *arguments: str) -> list[dict[str, object]]:
        """Return the allocations of `status --json`."""
        document = json.loads(self.run("status", "--json", *arguments).stdout)
        assert document["schema"] == 1
        allocations = document["allocations"]
        assert isinstance(allocations, list)
        return allocations

    def jobs(self) -> dict[str, str]:
        """Return the states of alice's jobs, by job name."""
        lines = self.slurm("squeue", "--me", "-h", "-o", "%j %T").splitlines()
        return dict(line.split() for line in lines)

    def fill(self) -> None:
        """Take all hosts, so that later requests have to wait."""
        self.slurm("sbatch", "-Q", "-N4", "--exclusive", "-J", "filler", "-o", "/dev/null", "--wrap", HOLD)
        wait_until("all hosts to be taken", self.jobs, accept=lambda jobs: jobs.get("filler") == "RUNNING")

    def free(self) -> None:
        """Release the hosts."""
        self.slurm("scancel", "--name=filler")


@pytest.fixture
def alice(lab: SlurmLab, request: pytest.FixtureRequest) -> Alice:
    """Alice, with separate state for this test."""
    return Alice(lab, lab.home() / f"test-{zlib.crc32(request.node.nodeid.encode()):x}")


@pytest.fixture
def held(alice: Alice) -> Iterator[Alice]:
    """Alice with a ready allocation `dev` of four hosts."""
    done = alice.run("alloc", "dev", "-N", "4", "-t", "30", "--gpus-per-node", "4")
    assert done.returncode == 0, done.stderr
    yield alice
    done = alice.run("release", "--all")
    assert done.returncode == 0, done.stderr
    assert alice.jobs() == {}
    assert {host: alice.lab.processes("alice", host) for host in HOSTS if alice.lab.is_up(host)} == {
        host: [] for host in HOSTS if alice.lab.is_up(host)
    }


def write(alice: Alice, name: str, text: str) -> str:
    path = alice.folder / name
    alice.lab.run(["sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', str(path)], stdin=text, check=True)
    return str(path)


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "monarch_hpc.cli", *arguments]


def until_said(process: HostProcess, words: str) -> str:
    """Read the output of *process* up to a line with *words*."""
    assert process.stdout is not None
    return read_until(process.stdout, words, process.stderr)
