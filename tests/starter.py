"""Runs programs one after the other in one embedded allocation, since most of what a short one costs are the hosts.

This file is also the program of the allocation, which starts the others. One with torch goes on in a fork of it, after
loading what sharded meshes load: that takes longer than what such programs do. The others get an interpreter of their
own, since torch, once loaded, changes what the toolkit does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Starter", "open_starter"]

_WITH_TORCH = re.compile(r"^import torch$", re.MULTILINE)
_LOADED = ("torch", "torch._dynamo", "torch.distributed.tensor")


class Starter:
    """The program of an allocation that starts others in it."""

    def __init__(self, process: subprocess.Popen[str], most_s: int) -> None:
        self._process = process
        self._most_s = most_s

    def run(self, program: Path, folder: Path) -> tuple[str, str]:
        """Run a program in *folder*; return its exit status, or what became of it instead, and its output."""
        output = folder / f"{program.name}.out"
        order = {
            "program": str(program),
            "folder": str(folder),
            "output": str(output),
            "forked": _WITH_TORCH.search(program.read_text()) is not None,
            "most_s": self._most_s,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline().strip()
        return status or "the allocation has ended", output.read_text() if output.exists() else ""


@contextlib.contextmanager
def open_starter(folder: Path, num_hosts: int, most_s: int) -> Iterator[Starter]:
    """Open an allocation, and run each program in it for at most *most_s* seconds.

    Args:
        folder: gets the errors of the allocation, which must be without a traceback.
    """
    errors = folder / "starter.err"
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", str(num_hosts), __file__]
    with errors.open("w") as file:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        )
    with process:
        try:
            yield Starter(process, most_s)
            assert process.stdin is not None
            process.stdin.close()
            status = process.wait(60)
        finally:
            process.kill()
    text = errors.read_text()
    assert status == 0 and "Traceback" not in text, f"{status}: {text}"


def _forked(program: str, folder: str, output: str, most_s: int) -> int | str | None:
    """The exit status of a fork of this process; None in the fork, which is to run the program."""
    if "torch" not in sys.modules:
        for module in _LOADED:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return f"still running after {most_s} s" if status == -signal.SIGALRM else status
    signal.alarm(most_s)
    os.chdir(folder)
    for fd, file in ((0, os.devnull), (1, output), (2, output)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv, sys.path[0] = [program], os.path.dirname(program)
    return None


def _started(program: str, folder: str, output: str, most_s: int) -> int | str:
    """The exit status of the program in an interpreter of its own."""
    with open(output, "w") as out:
        try:
            done = subprocess.run(
                [sys.executable, program],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=most_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"still running after {most_s} s"
    return done.returncode


def _serve() -> str | None:
    """Run programs until standard input ends; in a fork, return the program that it is to run."""
    for line in sys.stdin:
        order = json.loads(line)
        forked = order.pop("forked")
        status = (_forked if forked else _started)(**order)
        if status is None:
            return str(order["program"])
        print(status, flush=True)
    return None


if __name__ == "__main__" and (_program := _serve()) is not None:
    runpy.run_path(_program, run_name="__main__")
