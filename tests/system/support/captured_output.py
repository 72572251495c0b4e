"""The output of procs as it reaches the program: captured stdout and stderr, and the run's log files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc import ProcMesh
from monarch_hpc.config.program import read_program
from monarch_hpc.testing import wait_until

__all__ = ["PATIENCE_S", "CapturedOutput", "capture_output", "log_file"]

PATIENCE_S = 60.0


@dataclass
class CapturedOutput:
    """The text captured from the program's stdout and stderr."""

    out: io.StringIO
    err: io.StringIO

    def lines(self, stream: str = "out") -> list[str]:
        return (self.out if stream == "out" else self.err).getvalue().splitlines()

    def until(self, text: str, stream: str = "out") -> list[str]:
        """Wait until a line contains *text*; return all lines."""
        return wait_until(
            f"{text!r} on {stream}",
            lambda: self.lines(stream),
            PATIENCE_S,
            accept=lambda lines: any(text in line for line in lines),
        )


@contextlib.contextmanager
def capture_output() -> Iterator[CapturedOutput]:
    captured = CapturedOutput(io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(captured.out), contextlib.redirect_stderr(captured.err):
        yield captured


def log_file(procs: ProcMesh, rank: int) -> Path:
    program = read_program()
    assert program.directory is not None
    return program.directory / "runs" / program.run / f"r{rank:04d}.{procs.procs[rank].host}.log"
