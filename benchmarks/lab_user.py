"""An ordinary user of a Slurm lab of its own, for campaigns, and what these find."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.testing.slurmlab import HostProcess, SlurmLab

__all__ = ["PATIENCE_S", "User", "Verdict", "open_lab"]

PATIENCE_S = 300.0
"""Longest wait for one command."""


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
