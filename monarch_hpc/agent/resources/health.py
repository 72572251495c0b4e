"""Examines one host: `python -m monarch_hpc.agent.resources.health FOLDER` prints what it finds, as one JSON object.

It runs as a step of its own, so that a host can be examined whose agent does not work, or that is out of use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from monarch_hpc.core.machine.memory import memory_left
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.text.units import format_size

__all__ = ["examine", "main"]

_GPU_S = 15.0
"""Time that a program may take, such as a GPU's tool; a wedged driver never answers."""

_LITTLE_BYTES = 256 << 20
"""Less free memory, or less of a folder, than the start of a program with torch needs."""


def examine(shared: Path) -> dict[str, str]:
    """Return what was examined and what is wrong with it; an empty text where nothing is."""
    checks: dict[str, Callable[[], str]] = {
        "shared": lambda: _folder(shared),
        "tmp": lambda: _folder(Path(tempfile.gettempdir())) or _executable(Path(tempfile.gettempdir())),
        "shm": lambda: _folder(Path("/dev/shm")),
        "memory": _memory,
        "gpus": _gpus,
    }
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except OSError as error:
            found[name] = str(error)
    return found


def main(arguments: list[str]) -> int:
    """Print the findings, and this host's clock."""
    sys.stdout.write(json.dumps({"findings": examine(Path(arguments[0])), "clock_s": time.time()}) + "\n")
    return 0


def _folder(folder: Path) -> str:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"monarch-hpc")
        file.flush()
    found = os.statvfs(folder)
    free_bytes = found.f_frsize * found.f_bavail
    return f"{folder} has {format_size(free_bytes)} left" if free_bytes < _LITTLE_BYTES else ""


def _executable(folder: Path) -> str:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name) / "program"
        path.write_bytes(b"#!/bin/sh\nexit 0\n")
        path.chmod(0o700)
        try:
            status, _ = _run([str(path)])
        except PermissionError:
            return f"programs in {folder} cannot be run (noexec)"
    return f"a program in {folder} exits with {status}" if status else ""


def _memory() -> str:
    free_bytes = memory_left()
    little = free_bytes is not None and free_bytes < _LITTLE_BYTES
    return f"{format_size(free_bytes or 0)} of memory are left" if little else ""


def _gpus() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        status, printed = _run([tool, "-L"])
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer in {_GPU_S:.0f} s"
    return "" if status == 0 else (printed.strip().splitlines() or ["nvidia-smi failed"])[-1]


def _run(argv: list[str]) -> tuple[int, str]:
    """Run a program; return its exit status, and what it printed."""
    with launch(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            printed, _ = process.communicate(timeout=_GPU_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, printed.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
