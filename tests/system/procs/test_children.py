"""A child process that `multiprocessing` starts calls the meshes that it was given."""

from __future__ import annotations

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

PROGRAM = """
import multiprocessing
from monarch_hpc import Actor, endpoint, this_host

class Counter(Actor):
    def __init__(self): self.num = 0
    @endpoint
    def count(self): self.num += 1; return self.num

def call(counter, answers):
    answers.put(counter.count.call_one().get(30))

if __name__ == "__main__":
    spawning = multiprocessing.get_context("spawn")
    counter = this_host().spawn_procs().spawn("counter", Counter)
    assert counter.count.call_one().get(30) == 1
    answers = spawning.Queue()
    child = spawning.Process(target=call, args=(counter, answers))
    child.start()
    print("the child got", answers.get(timeout=30), flush=True)
    child.join(30)
    print("it ended with", child.exitcode, "and the parent gets", counter.count.call_one().get(30))
"""


def test_a_spawned_child_calls_the_mesh_of_its_parent(programs: Programs) -> None:
    """An actor on this machine; the child joins the parent's run with the allocation's key, and ends alone."""
    output = programs.run(PROGRAM)
    assert "the child got 2" in output and "it ended with 0 and the parent gets 3" in output
