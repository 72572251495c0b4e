"""Records of an allocation that are left after its release, whatever procs and helpers died before."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, held_alone, until_printed, write

__all__ = ["alice", "held_alone"]

pytest.importorskip("datafusion")
pytest.importorskip("pyarrow")

TRAINING = """
import os, signal, sys, time
import monarch_hpc
from monarch_hpc import Actor, current_rank, endpoint

class Trainer(Actor):
    @endpoint
    def step(self, number):
        rank = current_rank().rank
        time.sleep(0.2 if rank == 3 else 0.01)
        monarch_hpc.log_metric("loss", 9.5 if (rank, number) == (2, 1) else 1 / (number + 1), step=number)
        with monarch_hpc.span("all_reduce"):
            time.sleep(0.0 if rank == 1 else 0.1)
    @endpoint
    def die(self):
        monarch_hpc.span("the last step").__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

monarch_hpc.actor.unhandled_fault_hook = lambda failure: None
with monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}) as procs:
    trainers = procs.spawn("trainer", Trainer)
    for number in range(5):
        trainers.step.call(number).get()
    print("trained", flush=True)
    if "die" in sys.argv:
        try:
            trainers.slice(hosts=2).die.call_one().get()
        except monarch_hpc.SupervisionError:
            print("died", flush=True)
        time.sleep(600)
"""


CALLS = "SELECT rank, host, count(*) AS calls FROM handled WHERE endpoint = 'step' GROUP BY 1, 2 ORDER BY 1"


def ask(user: Alice, *arguments: str) -> list[dict[str, Any]]:
    done = user.run("query", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def test_what_procs_did_before_they_or_their_helper_died_is_left_after_the_release(held_alone: Alice) -> None:
    user = held_alone
    (shown,) = user.status("dev")
    running = user.start("run", "-a", "dev", write(user, "training.py", TRAINING), "die")
    until_printed(running, "died")
    parts = wait_until("the last records of the proc", lambda: parts_of(user, 2), 120.0)
    mark = ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=bad DIMM"]
    user.lab.run(mark, user="root", check=True)
    (marked,) = ask(user, "--ask", "slurm-marks")
    assert (marked["host"], marked["job"], marked["procs"]) == ("n1", shown["job_id"], 1)
    assert marked["reason"].startswith("bad DIMM") and "DRAIN" in marked["state"] and marked["minutes_left"] > 0
    user.lab.run([*mark[:3], "State=RESUME"], user="root", check=True)
    # A helper is killed: the next one goes on where it was.
    (helper,) = helpers(user, "n2")
    os.kill(helper, signal.SIGKILL)
    wait_until("the next helper", lambda: [*set(helpers(user, "n2")) - {helper}], 120.0)
    running.signal_group(signal.SIGKILL)
    running.communicate(timeout=180)
    live = ask(user, CALLS)
    assert user.run("release", "dev").returncode == 0
    job = ["--job", str(shown["job_id"])]
    rows = ask(user, *job, CALLS)
    assert rows == [{"rank": rank, "host": f"n{rank + 1}", "calls": 5} for rank in range(4)]
    assert all(row in rows for row in live)
    death = ask(user, *job, "--ask", "before-death")
    assert {(row["host"], row["rank"]) for row in death} == {("n3", 2)} and "SIGKILL" in death[0]["cause"]
    assert ("span", "the last step", "open") in {(row["kind"], row["what"], row["status"]) for row in death}
    assert ask(user, "--allocation", "dev", "--ask", "slow-rank")[0]["rank"] == 3
    assert ask(user, *job, "--ask", "loss-spread")[0]["step"] == 1
    assert {path.stat().st_mode & 0o777 for path in parts} == {0o600}
    done = user.run("query", "--job", "99999", "SELECT 1")
    assert done.returncode != 0 and "job 99999" in done.stderr and "no allocation of this registry" in done.stderr


def parts_of(user: Alice, rank: int) -> list[Path]:
    return [path for path in user.shared.glob(f"**/telemetry/parts/{rank}-*") if path.is_file()]


def helpers(user: Alice, host: str) -> list[int]:
    return [pid for pid, command in user.lab.processes("alice", host) if "monarch_hpc.telemetry.scribe" in command]
