"""Programs that break what our code relies on: their calls are answered, or say that they cannot be."""

from __future__ import annotations

import pytest

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

ACTORS = """
import asyncio
from monarch_hpc import Actor, Channel, endpoint

class Sleeper(Actor):
    @endpoint
    async def nap(self, seconds):
        await asyncio.sleep(seconds)
        return "slept"

    @endpoint
    async def open(self):
        port, self.receiver = Channel.open()
        return port
"""

FROZEN = """
from tests.system.support.breakages import freeze_time
freeze_time()
import asyncio
from monarch_hpc import this_host
from actors import Sleeper

async def nap(sleepers):
    return await sleepers.nap.call(0.01)

with this_host().spawn_procs({"gpus": 2}) as procs:
    sleepers = procs.spawn("sleepers", Sleeper)
    freeze_time()
    print(*sleepers.nap.call(0.01).get(30).values())
    print(*asyncio.run(nap(sleepers)).values())
    try:
        sleepers.nap.call(60).get(0.05)
    except TimeoutError:
        print("waited in vain")
"""

CLOSED = """
import asyncio, sys, threading
from monarch_hpc import this_host
from monarch_hpc.core.errors import EngineFailed
from tests.system.support.breakages import close_descriptors
from tests.system.support.controlling import settle
from actors import Sleeper

async def sleep(future):
    await future

def tell(what, function):
    try:
        function()
    except EngineFailed as error:
        sys.stdout.write(f"{what} {type(error.__cause__).__name__}\\n")  # as a whole: two threads tell

procs = this_host().spawn_procs()
sleeper = procs.spawn("sleeper", Sleeper)
settle(procs)
port = sleeper.open.call_one().get(30)
future = sleeper.nap.call_one(60)
told = threading.Event()
future.add_done_callback(lambda future: (tell("a callback:", future.result), told.set()))
close_descriptors("eventpoll")
tell("a call in flight:", lambda: future.get(30))
told.wait(30)
tell("a call:", lambda: sleeper.nap.call_one(0).get(30))
tell("an awaited call:", lambda: asyncio.run(sleep(sleeper.nap.call_one(0))))
tell("a broadcast:", lambda: sleeper.nap.broadcast(0))
tell("a port:", lambda: port.send(0))
tell("an actor:", lambda: procs.spawn("other", Sleeper).nap.call_one(0).get(30))
"""

BROKEN = """
import sys
from monarch_hpc import this_host
from tests.system.support import breakages
from actors import Sleeper

def see(what, function):
    try:
        answer = function()
    except Exception as error:
        answer = type(error).__name__
    sys.stdout.write(f"{what} {answer}\\n")  # as a whole: the engine's thread tells, too

before, after = sys.argv[1:]
exec(before)
procs = this_host().spawn_procs({"gpus": 2})
sleepers = procs.spawn("sleepers", Sleeper)
exec(after)
see("first", lambda: list(sleepers.nap.call(0.01).get(30).values()))
others = this_host().spawn_procs(bootstrap=print)
see("others", lambda: others.spawn("others", Sleeper).nap.call_one(0).get(30))
see("stopped", lambda: procs.stop().get(30))
"""


def test_time_may_stand_still(programs: Programs) -> None:
    (programs.folder / "actors.py").write_text(ACTORS)
    assert programs.run(FROZEN).splitlines()[-3:] == ["slept slept", "slept slept", "waited in vain"]


def test_a_program_that_has_closed_its_descriptors_is_told(programs: Programs) -> None:
    (programs.folder / "actors.py").write_text(ACTORS)
    # Without UCX: a thread of libucs ends a process that has closed its descriptors. See the drill ``lost``.
    output = programs.run(CLOSED, env={"MONARCH_HPC_FABRIC__ORDER": "[tcp]"})
    told = [line for line in output.splitlines() if line.endswith(": OSError")]
    assert sorted(told) == sorted(
        f"{what}: OSError"
        for what in ("a call in flight", "a callback", "a call", "an awaited call", "a broadcast", "a port", "an actor")
    ), output


def answers_in(output: str) -> dict[str, str]:
    """What BROKEN has printed about each of its calls."""
    lines = [line.partition(" ") for line in output.splitlines()]
    return {what: answer for what, _, answer in lines if what in ("first", "others", "stopped")}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("breakages.set_failing_hooks()", "breakages.take_threading_away(); breakages.replace_waiting()"),
        ("", "breakages.set_failing_hooks(); breakages.replace_waiting()"),
    ],
)
def test_threads_and_sockets_may_be_replaced(programs: Programs, before: str, after: str) -> None:
    (programs.folder / "actors.py").write_text(ACTORS)
    output = programs.run(BROKEN, before, after)
    assert answers_in(output) == {"first": "['slept', 'slept']", "others": "slept", "stopped": "None"}, output


def test_a_program_without_frames_is_told(programs: Programs) -> None:
    (programs.folder / "actors.py").write_text(ACTORS)
    output = programs.run(BROKEN, "", "sys.setrecursionlimit(20)")
    told = dict(
        line.split(maxsplit=1) for line in output.splitlines() if line.startswith(("first", "others", "stopped"))
    )
    assert told.keys() == {"first", "others", "stopped"}, output
    # Of the frames that are left depends whether there are enough to say that the engine has failed.
    assert {told["first"], told["stopped"]} <= {"RecursionError", "EngineFailed"}, output
