"""Threads that a user's module leaves running are ended with the proc as Python ends them at its exit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

MODULE = """
import threading, time
from concurrent.futures import ThreadPoolExecutor

class Clock:
    def read(self): return time.monotonic()

class Kept:
    def __init__(self, note): self.note = note
    def __del__(self): self.note("released")

clock, event, pool, kept = Clock(), threading.Event(), ThreadPoolExecutor(1), None

def spin():
    while True:
        clock.read()

def nap():
    while True:
        time.sleep(0.001)
        try:
            clock.read()
        except Exception as error:
            print("nap failed:", error, flush=True)

def wait():
    try:
        event.wait()
    finally:
        clock.read()

def until_the_exit():
    other = ThreadPoolExecutor(1)
    try:
        while True:
            other.submit(time.sleep, 0.001).result()
    except RuntimeError:  # no more work is taken
        clock.read()

def write(note):
    until_the_exit()
    note("written")

def queue(note):
    pool.submit(until_the_exit)
    pool.submit(note, "done")

def start(target, *args, daemon=True):
    threading.Thread(target=target, args=args, daemon=daemon).start()

def leave(path, which):
    def note(text):
        with path.open("a") as file:
            file.write(text + " ")
    global kept
    kept = Kept(note)
    start(nap)
    start(wait)
    if which == "lasting":
        start(write, note, daemon=False)
        queue(note)
    else:
        start(spin)
        start(wait, daemon=False)
"""

PROGRAM = """
import sys
from pathlib import Path
from monarch_hpc import Actor, endpoint, this_host

class Worker(Actor):
    @endpoint
    def leave(self, which):
        import left
        left.leave(Path("note"), which)

procs = this_host().spawn_procs()
procs.spawn("worker", Worker).leave.call_one(sys.argv[1]).get(30)
procs.stop().get(60)
print("stopped")
"""


@pytest.mark.parametrize(
    ("which", "stop_s", "notes"),
    # Five seconds, a fifth, for the endless: longer than the program waits for the cause of a lost connection.
    [("lasting", 60, {"done", "written", "released"}), ("endless", 25, {"released"})],
)
def test_threads_that_are_not_daemons_may_end_first_and_daemons_say_nothing(
    programs: Programs, which: str, stop_s: int, notes: set[str]
) -> None:
    Path(programs.folder, "left.py").write_text(MODULE)
    Path(programs.folder, "monarch-hpc.yaml").write_text(f"procs: {{stop_s: {stop_s}}}\n")
    assert programs.run(PROGRAM, which) == "stopped\n"
    found = Path(programs.folder, "note").read_text().split()
    assert set(found) == notes and found[-1] == "released"
