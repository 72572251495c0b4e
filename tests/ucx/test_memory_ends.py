"""An end of memory loses no event: what would wait for ever fails instead, and nothing crashes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.guards.tree import ROOT

pytestmark = [
    pytest.mark.ucx,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev"),
]

FOLDER = ROOT / "monarch_hpc" / "transport" / "ucx"
CHECK = ROOT / "tests" / "ucx" / "memory_check.c"

# Kinds: 3 is DONE, 4 ERROR, 5 ROOM; status -4 is out of memory.
OUTCOMES = """\
a message that cannot be kept: 4 of lane 0 life 1 status -4, 0 left
an operation that is done: 3 of lane 0 life 0 status 0, 0 left
a record: 1
another lane: (nil)
room: 5 of lane 0 life 1 status 0, 0 left
a record that UCX refuses: -4
the slot of a lane whose event waits is used: 0
events of a closed lane, given back: 4 of lane 0 life 1 status -4, 0 left
and afterwards: 1
"""


def test_an_end_of_memory_is_an_event_of_the_lane(tmp_path: Path) -> None:
    program = tmp_path / "check"
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", f"-I{FOLDER}", str(CHECK), "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=60)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, OUTCOMES), done
