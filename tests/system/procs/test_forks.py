"""Children that programs and actors fork: they end as they please, reach nothing of ours, cost their parent nothing."""

from __future__ import annotations

import pytest

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

pytestmark = pytest.mark.slow  # programs with hosts of their own

_FABRICS = [
    pytest.param("[tcp]", False, id="tcp"),
    pytest.param("[ucx, tcp]", False, id="before ucx"),
    pytest.param("[ucx, tcp]", True, id="ucx"),
]

_BEGIN = """
import asyncio, atexit, multiprocessing, os, signal, subprocess, sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint
from monarch_hpc.core.errors import ForkedError

DEADLINE_S = 60.0

def end_of(pid):
    # How a child ended: its exit status; it is killed when it does not end.
    give_up_s = time.monotonic() + DEADLINE_S
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > give_up_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "it hangs"
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])

def in_child(act):
    # Forks, lets the child do one thing, and returns how it ended.
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return end_of(pid)
    act()
    os._exit(99)

def leave_by_exit():
    sys.exit(3)

def leave_by_exception():
    raise ValueError("in the child")

def leave_at_once():
    os._exit(5)

def be_terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DEADLINE_S)

def forked(use):
    def act():
        try:
            use()
        except ForkedError as error:
            assert error.parent == os.getppid() and "subprocess" in str(error), error
            os._exit(0)
        except BaseException as error:
            print(f"in the child: {error!r}", flush=True)
        os._exit(1)
    return act

def by_multiprocessing():
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert pool.map(abs, range(-3, 2)) == [3, 2, 1, 0, 1]
    process = context.Process(target=time.sleep, args=(DEADLINE_S,))
    process.start()
    process.terminate()
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGTERM, process.exitcode
    failing = context.Process(target=leave_by_exit)
    failing.start()
    failing.join(DEADLINE_S)
    assert failing.exitcode == 3, failing.exitcode

def by_subprocess():
    assert subprocess.run(["echo", "hello"], capture_output=True, text=True, timeout=DEADLINE_S).stdout == "hello\\n"

ACTS = {
    act.__name__: act
    for act in (
        leave_by_exit, leave_by_exception, leave_at_once, be_terminated, by_multiprocessing, by_subprocess
    )
}

def load():
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    numbers = TensorDataset(torch.arange(32))
    loader = DataLoader(numbers, batch_size=8, num_workers=2, multiprocessing_context="fork")
    return [int(batch.sum()) for (batch,) in loader]

class Echo(Actor):
    @endpoint
    def say(self, word):
        return word

    @endpoint
    def fork(self, name):
        return in_child(ACTS[name])

    @endpoint
    def use(self, other):
        return in_child(forked(lambda: other.say.call_one("a").get(DEADLINE_S)))

    @endpoint
    def run(self, name):
        ACTS[name]()
        return "done"

    @endpoint
    def load(self):
        return load()

def settled():
    from monarch_hpc.mesh.program.controller import Controller
    return [channel.fabric for channel in Controller.instance().node.channels.values() if channel.peer.role == 3]

def begin():
    procs = monarch_hpc.hosts().spawn_procs({"procs": 2})
    echo = procs.spawn("echo", Echo)
    echo.say.call("a").get(DEADLINE_S)
    if os.environ["UCX_FIRST"]:
        give_up_s = time.monotonic() + DEADLINE_S
        while not all(fabric.startswith("ucx") for fabric in settled()) and time.monotonic() < give_up_s:
            echo.say.call("a").get(DEADLINE_S)
        assert all(fabric.startswith("ucx") for fabric in settled()), settled()
    return procs, echo

"""

_IN_THE_PROGRAM = """
def main():
    procs, echo = begin()
    first = echo.slice(procs=0)
    pending = first.say.call_one("pending")
    uses = {
        "call": lambda: first.say.call_one("a").get(DEADLINE_S),
        "broadcast": lambda: echo.say.broadcast("a"),
        "spawn": lambda: procs.spawn("other", Echo),
        "hosts": monarch_hpc.hosts,
        "spawn_procs": lambda: monarch_hpc.hosts().spawn_procs(),
        "stop": procs.stop,
        "await": lambda: asyncio.run(asyncio.wait_for(wait_for(first.say), DEADLINE_S)),
    }
    async def wait_for(say):
        await say.call_one("a")
    ends = {name: in_child(forked(use)) for name, use in uses.items()}
    assert set(ends.values()) == {0}, ends
    assert in_child(leave_at_once) == 5
    assert in_child(be_terminated) == -15
    by_multiprocessing()
    by_subprocess()
    assert pending.get(DEADLINE_S) == "pending"
    assert [value for _, value in echo.say.call("b").get(DEADLINE_S).items()] == ["b", "b"]
    # Those whose child runs on to the end of the program.
    for code, leave in ((3, leave_by_exit), (1, leave_by_exception)):
        pid = os.fork()
        if not pid:
            with procs:
                leave()
        assert end_of(pid) == code
    assert [value for _, value in echo.say.call("c").get(DEADLINE_S).items()] == ["c", "c"]
    print("all is well")

if __name__ == "__main__":
    main()
"""

_IN_AN_ACTOR = """
def main():
    procs, echo = begin()
    first, second = echo.slice(procs=0), echo.slice(procs=1)
    ends = [first.fork.call_one(name).get(DEADLINE_S) for name in
            ("leave_by_exit", "leave_by_exception", "leave_at_once", "be_terminated")]
    assert ends == [3, 1, 5, -15], ends
    assert first.use.call_one(second).get(DEADLINE_S) == 0
    assert second.use.call_one(first).get(DEADLINE_S) == 0
    for name in ("by_multiprocessing", "by_subprocess"):
        assert first.run.call_one(name).get(2 * DEADLINE_S) == "done"
    assert [value for _, value in echo.say.call("b").get(DEADLINE_S).items()] == ["b", "b"]
    print("all is well")

if __name__ == "__main__":
    main()
"""

_LOADERS = """
def main():
    procs, echo = begin()
    sums = [28, 92, 156, 220]
    assert echo.slice(procs=0).load.call_one().get(2 * DEADLINE_S) == sums
    assert load() == sums
    assert [value for _, value in echo.say.call("b").get(DEADLINE_S).items()] == ["b", "b"]
    print("all is well")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("order", "ucx_first"), _FABRICS)
@pytest.mark.parametrize("body", [_IN_THE_PROGRAM, _IN_AN_ACTOR], ids=["program", "actor"])
def test_a_child_ends_as_it_pleases_and_costs_its_parent_nothing(
    programs: Programs, body: str, order: str, ucx_first: bool
) -> None:
    environment = {"MONARCH_HPC_FABRIC__ORDER": order, "UCX_FIRST": "1" if ucx_first else ""}
    output = programs.run(_BEGIN + body, env=environment)
    assert "all is well" in output
    programs.until_left()


@pytest.mark.parametrize("ucx_first", [False, True])
def test_data_loaders_of_torch_work_in_programs_and_in_actors(programs: Programs, ucx_first: bool) -> None:
    pytest.importorskip("torch")
    output = programs.run(_BEGIN + _LOADERS, env={"UCX_FIRST": "1" if ucx_first else ""})
    assert "all is well" in output
    programs.until_left()
