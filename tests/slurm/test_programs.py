"""Programs on the first host of a real allocation: they outlive the login host's processes, and are alice's alone."""

from __future__ import annotations

import os
import signal

from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.slurm.commands import (
    Alice,
    alice,
    argv,
    held,
    kill_all_on_login,
    steps,
    until_printed,
    wait_for_steps,
    write,
)
from tests.slurm.test_runs import blocked

__all__ = ["alice", "blocked", "held"]

HELLO = str(ROOT / "examples" / "hello_mesh.py")

COUNTER = """
import os, socket, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Counter(Actor):
    @endpoint
    def count(self, value): return value + 1

print(socket.gethostname(), os.environ["SLURM_JOB_ID"].isdecimal(), "SLURM_PROCID" in os.environ, flush=True)
counters = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}).spawn("counter", Counter)
value = 0
while not os.path.exists("go"):
    value = max(counters.count.call(value).get().values())
    print(value, flush=True)
    time.sleep(0.01)
print("over", flush=True)
"""


def test_a_program_on_the_first_host_outlives_all_processes_of_the_login_host(held: Alice) -> None:
    before = steps(held)
    done = held.run("run", "-a", "dev", "--on", "host0", HELLO)
    assert done.returncode == 0, done.stderr
    assert "{'hosts': 3/4, 'gpus': 1/2} hello, world, from n4" in done.stdout
    client = held.start("run", "-a", "dev", "--on", "host0", write(held, "counter.py", COUNTER))
    assert "n1 True False" in until_printed(client, "1")
    kill_all_on_login(held)
    _, err = client.communicate(timeout=180)
    run = err.split()[1]
    wait_for_steps(held, before)
    (shown,) = held.status("dev")
    assert isinstance(shown["runs"], list)
    assert [one["run"] for one in shown["runs"]] == [run]
    attached = held.start("attach", run)
    until_printed(attached, "0")  # whatever comes next
    # Bob cannot see it, whatever he names: her registry and her files are hers.
    for verb in ("attach", "cancel"):
        done = held.lab.run(argv(verb, run), user="bob", env=held.environment({}))
        assert done.returncode not in (0, 130), done.stdout
    assert attached.poll() is None
    held.lab.run(["touch", str(held.lab.home() / "go")], check=True)
    until_printed(attached, "over")
    attached.communicate(timeout=180)
    assert attached.returncode == 0
    held.lab.run(["rm", str(held.lab.home() / "go")], check=True)
    whole = held.run("attach", "--all", run).stdout.split()
    assert held.run("attach", "--all", "-a", "dev").stdout.split() == whole  # none runs: the last one is meant
    assert whole[:3] == ["n1", "True", "False"] and whole[-1] == "over"
    assert whole[3:-1] == [str(number + 1) for number in range(len(whole) - 4)]
    wait_until("the end of the run", lambda: held.status("dev")[0]["runs"], accept=lambda runs: not runs)


def test_over_the_relay_a_program_is_reached_too(blocked: Alice) -> None:
    sleeper = write(blocked, "program.py", "import os, time\nprint('armed', os.getpid(), flush=True)\ntime.sleep(600)")
    client = blocked.start("run", "-a", "dev", "--on", "host0", sleeper)
    until_printed(client, "armed")
    client.signal_group(signal.SIGHUP)
    _, err = client.communicate(timeout=180)
    assert client.returncode == 129
    run = err.split()[1]
    (pid,) = (pid for pid, command in blocked.lab.processes("alice", "n1") if sleeper in command)
    assert blocked.run("cancel", run, "--grace", "60s").stdout == f"run {run} has ended: signal 15 (SIGTERM)\n"
    assert not os.path.exists(f"/proc/{pid}")
