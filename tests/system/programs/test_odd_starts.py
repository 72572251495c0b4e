"""Programs that start in an odd way (signals ignored, streams closed, no working folder), or that Ctrl-C ends."""

from __future__ import annotations

import signal

import pytest

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

PROGRAM = """
import os, signal, subprocess, sys, tempfile
from pathlib import Path
exec(sys.argv[1])
from monarch_hpc import Actor, endpoint, this_host

class Asked(Actor):
    @endpoint
    def exit_code(self):
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]).wait()

with this_host().spawn_procs() as procs:
    Path(sys.argv[2]).write_text(str(procs.spawn("asked", Asked).exit_code.call_one().get(60)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "oddity",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
        "os.closerange(0, 3)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    ],
    ids=["children are not waited for", "no working folder", "no streams", "signals blocked"],
)
def test_its_actors_start_as_usual(programs: Programs, oddity: str) -> None:
    """Their processes can wait for children: nothing of the oddity is inherited."""
    answer = programs.folder / "answer"
    programs.run(PROGRAM, oddity, str(answer))
    assert answer.read_text() == "7"


INTERRUPTED = """
import sys
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Asked(Actor):
    @endpoint
    def ask(self): ...

hosts = monarch_hpc.hosts()
if "procs" in sys.argv:
    hosts.spawn_procs().spawn("asked", Asked).ask.call().get(60)
raise KeyboardInterrupt
"""


@pytest.mark.slow
@pytest.mark.parametrize("use", ["hosts", "procs"])
def test_ctrl_c_ends_a_program_by_sigint_whatever_the_exit_imports(programs: Programs, use: str) -> None:
    assert programs.run(INTERRUPTED, use, code=-signal.SIGINT).endswith("\nKeyboardInterrupt\n")


@pytest.mark.slow
def test_streams_that_are_closed_are_no_sockets_of_the_program(programs: Programs) -> None:
    """What a library writes to its standard output must not reach an agent, nor its folder's lock an agent's input."""
    answer = programs.folder / "answer"
    text = PROGRAM + "Path(sys.argv[2]).write_text(' '.join(os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)))\n"
    programs.run(text, "os.closerange(0, 3)", str(answer))
    assert answer.read_text().split() == ["/dev/null"] * 3
