"""Messages to a whole mesh that are inside the agents' tree when their program dies."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import FAILPOINTS_VARIABLE, hosts_of
from tests.system.support.first_host import allocation, call, finish, line, script, start
from tests.system.support.takeovers import kill_program

ACTORS = """
import monarch_hpc
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.ids import Role

class Sizes(monarch_hpc.Actor):
    def __init__(self):
        self.sizes = []

    @monarch_hpc.endpoint
    def add(self, array):
        self.sizes.append(len(array))

    @monarch_hpc.endpoint
    def got(self):
        return self.sizes

    @monarch_hpc.endpoint
    def num_programs(self):
        return sum(channel.peer.role is Role.CONTROLLER for channel in Runtime.current.node.channels.values())
"""

KEEP = """
import monarch_hpc
from sizes import Sizes
procs = monarch_hpc.hosts().spawn_procs(per_host={"p": 2}, name="procs")
procs.spawn("sizes", Sizes).got.call().get()
procs.keep("kept")
"""

USE = """
import monarch_hpc, numpy, sys
sizes = monarch_hpc.kept("kept")["sizes"]
"""

# So large that each host gets it once, from the agents, which have passed on nothing before.
SEND = f"{USE}sizes.add.broadcast(numpy.zeros(1 << 18))\nsys.stdin.read()\n"

# What goes to one actor waits there for what the agents have not passed on.
HAND_OVER = f"{USE}sizes.add.broadcast(numpy.zeros(1 << 18))\nsizes.slice(hosts=1, p=0).add.broadcast([0])\n"

CHECK = f"""{USE}
print('here', flush=True)
sys.stdin.readline()
there = sizes.slice(hosts=1)
while max(there.num_programs.call().get().values()) > 1:
    pass
print('alone', flush=True)
sys.stdin.readline()
sizes.add.call(numpy.zeros(1 << 19)).get()
print(there.got.call().get().values())
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an allocation of two hosts; the second one's agent stops at the first message for several procs."""
    monkeypatch.setenv(FAILPOINTS_VARIABLE, "agent.cast@1=stop")
    (tmp_path / "sizes.py").write_text(ACTORS)
    with allocation(tmp_path, 2):
        monkeypatch.delenv(FAILPOINTS_VARIABLE)
        yield tmp_path


@dataclass(frozen=True)
class Scene:
    """Two programs, and the agent of the second host, which stands still with the message of the first.

    Attributes:
        sender: the program that has sent it.
        checker: the program that will look what has come of it, attached since before: what the agent has is lost when
            it stands still for too long, and a program takes many seconds to start on a busy machine.
        agent: the agent's process id.
    """

    sender: subprocess.Popen[bytes]
    checker: subprocess.Popen[bytes]
    agent: int

    def check(self) -> str:
        """What the kept actors of the second host have handled, whose agent goes on once the sender is gone."""
        try:
            assert self.checker.stdin is not None
            self.checker.stdin.write(b"look\n")
            self.checker.stdin.flush()
            assert line(self.checker) == "alone\n"
        finally:
            os.kill(self.agent, signal.SIGCONT)
        code, out, err = finish(self.checker, b"go\n")
        assert code == 0, err
        return out


def begin(home: Path, text: str) -> Scene:
    """Start a program whose message stays in the second host's agent, and one that looks at it afterwards."""
    code, _, err = call(home, "run", "-a", "dev", script(home, KEEP))
    assert (code, err) == (0, ""), err
    agent = hosts_of(home / "allocation")[1].agent
    checker = start(home, "run", "-a", "dev", script(home, CHECK), stdin=subprocess.PIPE)
    assert line(checker) == "here\n"
    sender = start(home, "run", "-a", "dev", script(home, text), stdin=subprocess.PIPE)
    wait_until("the agent stands still", lambda: getattr(read_stat(agent), "state", ""), accept="T".__eq__)
    return Scene(sender, checker, agent)


def test_kept_actors_do_not_handle_what_was_on_its_way_when_its_program_died(home: Path) -> None:
    scene = begin(home, SEND)
    kill_program(scene.sender)
    assert scene.check() == "[[524288], [524288]]\n"
    assert finish(scene.sender)[0] == 128 + signal.SIGKILL


def test_kept_actors_handle_in_order_what_a_program_has_sent_that_has_ended_in_order(home: Path) -> None:
    scene = begin(home, HAND_OVER)
    assert scene.check() == "[[262144, 1, 524288], [262144, 524288]]\n"
    assert finish(scene.sender)[0] == 0
