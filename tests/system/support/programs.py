"""Programs as users start them: files run by a separate interpreter, with a state directory for each test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest

from monarch_hpc.core.machine.procfs import each_pid, read_environ
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import COOKIE

__all__ = ["PATIENCE_S", "Programs", "programs", "read_until", "shown_environ"]

PATIENCE_S = 300.0


class Programs:
    """Starts programs in one folder, and kills those that still run at the end of the test.

    Attributes:
        folder: working directory of the programs, which also has their files.
        environment: environment variables of the programs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Short: procs show as many variables as there were bytes when their agent was started, short ones first.
        number = os.urandom(4).hex()
        self.mark = f"TEST={number}".encode()
        self.environment = {
            **os.environ,
            "TEST": number,
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")])),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, text: str, *arguments: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start a program, with stderr redirected to stdout."""
        path = self.folder / f"program{len(self._started)}.py"
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, text: str, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """Run a program to its end, assert that its exit code is *code*, and return its output."""
        process = self.start(text, *arguments, env=env)
        output = process.communicate(timeout=PATIENCE_S)[0]
        assert process.returncode == code, output
        return output

    def until(self, process: subprocess.Popen[str], words: str) -> str:
        """Read and return a program's output up to a line that contains *words*."""
        assert process.stdout is not None
        return read_until(process.stdout, words)

    def end(self) -> None:
        """Kill the programs that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def procs(self) -> list[int]:
        """Ids of the processes of allocations that this test's programs opened."""
        marks = [self.mark, f"{COOKIE}=".encode()]
        return [pid for pid in each_pid() if all(mark in shown_environ(pid) for mark in marks)]

    def until_left(self) -> None:
        """Wait until no process of an allocation is left: a killed one stays until the kernel runs it once more."""
        wait_until("no process of an allocation", self.procs, accept=lambda left: not left)


def shown_environ(pid: int) -> bytes:
    """The environment of a process; waits for the end of an exec, within which it shows none."""
    return wait_until("the end of an exec", lambda: read_environ(pid), accept=lambda it: it is not None) or b""


def read_until(stdout: Iterable[str], words: str, stderr: IO[str] | None = None) -> str:
    """Read and return lines up to one that contains *words*; *stderr* is read only for the error if there is none."""
    output = ""
    for line in stdout:
        output += line
        if words in line:
            return output
    raise AssertionError(f"the program ended without printing {words!r}: {output}{stderr.read() if stderr else ''}")


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Starts the programs of this test."""
    made = Programs(tmp_path)
    yield made
    made.end()
