"""A run on a real allocation whose program dies with all processes of the login host, and another program there."""

from __future__ import annotations

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, held, kill_all_on_login, procs_left, until_printed, write

__all__ = ["alice", "held"]

WORKER = """
import os, time
from monarch_hpc import Actor, endpoint

class Worker(Actor):
    @endpoint
    def work(self, number):
        time.sleep(0.2)
        return number, os.uname().nodename
"""

FIRST = """
import time
import monarch_hpc
from worker import Worker

work = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}, name="procs").spawn("work", Worker)
work.work.call(0).get()
calls = [work.work.call(number) for number in range(1, 6)]
print("asked", flush=True)
time.sleep(600)
"""

SECOND = """
import monarch_hpc
taken = monarch_hpc.takeover()
print(sorted(answer.get() for answer in taken.unfetched))
print(sorted(taken.meshes), taken.meshes["work"].work.call(9).get().values(), taken.num_dropped, taken.problems)
"""


def test_a_run_is_taken_over_after_its_program_and_its_command_were_killed(held: Alice) -> None:
    write(held, "worker.py", WORKER)
    first = held.start("run", "-a", "dev", "--on-loss", "hold", write(held, "first.py", FIRST))
    until_printed(first, "asked")
    kill_all_on_login(held)
    first.communicate(timeout=60)

    def state() -> list[tuple[str, str]]:
        (shown,) = held.status("dev")
        runs = shown["runs"]
        assert isinstance(runs, list)
        return [(run["run"], run["state"]) for run in runs]

    ((run, _),) = wait_until("the held run", state, accept=lambda seen: [one for _, one in seen] == ["held"])
    done = held.run("attach", run, "--takeover", "--", write(held, "second.py", SECOND))
    assert done.returncode == 0, done.stderr
    answers, rest = done.stdout.splitlines()[-2:]
    assert answers == str(sorted((number, f"n{host}") for number in range(1, 6) for host in range(1, 5)))
    assert rest == f"['procs', 'work'] {[(9, f'n{host}') for host in range(1, 5)]} 0 {{}}"
    wait_until("the end of the procs", lambda: procs_left(held), 60.0, accept=lambda left: not left)
    wait_until("the end of the run", state, accept=lambda seen: not seen)
