"""Runs programs of tests of GPUs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["run_drill"]


def run_drill(program: str, *arguments: str, environment: Mapping[str, str] = {}, timeout_s: float = 600) -> str:
    """Run a program of this folder, which must end well, and say that it has passed; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.gpu.{program}", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0 and "passed" in done.stdout.splitlines(), f"status {done.returncode}:\n{done.stdout}"
    return done.stdout
