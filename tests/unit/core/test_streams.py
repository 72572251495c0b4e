"""Standard streams that are closed are occupied, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from monarch_hpc.core.process.streams import {function}
{function}()
with open(sys.argv[1], "w") as answer:
    print(*(os.readlink(f"/proc/self/fd/{{fd}}") for fd in range(3)), answer.fileno(), file=answer)
    print(*(os.get_inheritable(fd) for fd in range(3)), sys.stdout is None, file=answer)
print("to nobody")
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1", "1 2", "0 1 2"])
@pytest.mark.parametrize("function", ["fill_standard_streams", "open_standard_streams"])
def test_closed_ones_are_dev_null(tmp_path: os.PathLike[str], closed: str, function: str) -> None:
    answer = os.path.join(tmp_path, "answer")
    numbers = [int(fd) for fd in closed.split()]
    shell = " ".join(['exec "$@"', *(f"{fd}>&-" for fd in numbers)])
    program = _PROGRAM.format(function=function)
    words = ["bash", "-c", shell, "-", sys.executable, "-c", program, answer]
    subprocess.run(words, stdin=subprocess.PIPE, capture_output=True, check=True)
    with open(answer, encoding="utf-8") as file:
        opened, states = (line.split() for line in file.read().splitlines())
    assert [name == "/dev/null" for name in opened[:3]] == [fd in numbers for fd in range(3)]
    assert int(opened[3]) > 2
    assert states == ["True"] * 3 + [str(function.startswith("fill") and 1 in numbers)]
