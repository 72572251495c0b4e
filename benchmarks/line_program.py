"""A program in another interpreter that answers each line with one, such as a peer's that is measured in turns."""

from __future__ import annotations

import subprocess

__all__ = ["LineProgram"]


class LineProgram:
    """Starts it, and waits until it says that it is ready.

    Args:
        python: an interpreter that has what *code* imports.

    Raises:
        RuntimeError: it did not start.
    """

    def __init__(self, python: str, code: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        if (said := self._answer()) != "ready":
            raise RuntimeError(f"the program of {python} did not start: it said {said!r}")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
