"""An ordinary user of a Slurm lab of its own, and the findings of a campaign."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab import HostProcess, SlurmLab

__all__ = ["CALLER", "PATIENCE_S", "User", "Verdict", "nothing_left", "open_lab", "release"]

PATIENCE_S = 300.0
"""Longest wait for one command."""

CALLER = """
import time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, text):
        return text

print(time.time(), flush=True)
print(monarch_hpc.hosts().slice(hosts=0).spawn_procs().spawn("echo", Echo).echo.call_one("answer").get(), flush=True)
"""
"""A program that prints when it begins, and an answer of an actor on the first host."""


@dataclass(frozen=True)
class User:
    """Alice on the login host of a lab."""

    lab: SlurmLab

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "monarch_hpc.cli", *arguments]

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.lab.run(self.argv(*arguments), timeout_s=PATIENCE_S, env=env)

    def must(self, *arguments: str) -> str:
        done = self.run(*arguments)
        if done.returncode:
            raise SystemExit(f"monarch-hpc {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> HostProcess:
        return self.lab.popen(self.argv(*arguments), env=env)

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        path = self.lab.home() / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def allocations(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.must("status", "--json"))["allocations"]
        return found

    def runs(self) -> list[str]:
        return [run["run"] for one in self.allocations() for run in one["runs"]]

    def jobs(self) -> dict[str, str]:
        lines = self.lab.run(["squeue", "--me", "-h", "-o", "%j %T"], check=True).stdout.splitlines()
        return dict(line.split() for line in lines)

    def left(self) -> dict[str, object]:
        """All her processes, on every host."""
        hosts = ("login", *self.lab.hosts)
        return {host: found for host in hosts if (found := self.lab.processes("alice", host))}


@dataclass
class Verdict:
    """What a campaign found: a line for each promise."""

    kept: bool = True

    def say(self, what: str, found: object, kept: bool) -> None:
        self.kept &= kept
        print(f"{'kept  ' if kept else 'BROKEN'}  {what}: {found}", flush=True)


@contextlib.contextmanager
def open_lab(num_hosts: int) -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="campaign") as folder:
        os.chmod(folder, 0o755)
        with SlurmLab("campaign", base=Path(folder) / "lab", num_hosts=num_hosts, tied=True) as lab:
            yield User(lab)


def release(user: User, verdict: Verdict) -> None:
    """Release all allocations; nothing is left of them."""
    done = user.run("release", "--all")
    verdict.say("release", done.stdout.strip() or done.stderr, not done.returncode)
    verdict.say("jobs left", user.jobs() or 0, not user.jobs())
    nothing_left(user, verdict)


def nothing_left(user: User, verdict: Verdict) -> None:
    """Check that no process of the user is left on any host."""
    with contextlib.suppress(TimeoutError):
        wait_until("the end of all processes", user.left, 60.0, accept=lambda left: not left)
    verdict.say("processes left", user.left() or 0, not user.left())
