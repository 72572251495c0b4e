"""Runs on a real allocation: concurrent, interrupted, over a relay, and with lost hosts."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.slurm.commands import (
    SLEEPER,
    Alice,
    alice,
    held,
    held_alone,
    kill_all_on_login,
    no_connections,
    procs_left,
    steps,
    until_printed,
    wait_for_steps,
    write,
)

__all__ = ["alice", "held", "held_alone"]

HELLO = str(ROOT / "examples" / "hello_mesh.py")
GREETED = re.compile(r"^\[r0\S*( n\d)?\] about to greet world", re.MULTILINE)
"""What its procs print, folded or not."""


def test_hello_and_granted_gpus(held: Alice) -> None:
    done = held.run("run", HELLO)
    assert done.returncode == 0, done.stderr
    assert "{'hosts': 3/4, 'gpus': 1/2} hello, world, from n4" in done.stdout
    assert GREETED.search(done.stdout), done.stdout
    assert "caught: division by zero" in done.stdout
    done = held.run("run", write(held, "gpus.py", SLEEPER))
    # Two procs share four GPUs: each sees its own two first, and then its peer's.
    assert "gpus ['0,1,2,3', '2,3,0,1']" in done.stdout


def test_two_runs_at_once_and_ctrl_c_ends_one_of_them_only(held: Alice) -> None:
    before = steps(held)
    program = write(held, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()")
    first, second = (held.start("run", "-a", "dev", program) for _ in range(2))
    for run in (first, second):
        until_printed(run, "ready")
    (shown,) = held.status("dev")
    assert isinstance(shown["runs"], list) and len(shown["runs"]) == 2
    first.signal_group(signal.SIGINT)
    first.communicate(timeout=180)
    assert first.returncode == 130
    assert second.poll() is None
    assert held.run("run", "-a", "dev", HELLO).returncode == 0
    second.signal_group(signal.SIGINT)
    second.communicate(timeout=180)
    assert second.returncode == 130
    wait_until("no proc", lambda: procs_left(held), 120.0, accept=lambda left: not left)
    wait_for_steps(held, before)
    (shown,) = wait_until("the end of the runs", lambda: held.status("dev"), accept=lambda seen: seen[0]["runs"] == [])
    assert shown["state"] == "ready"


def test_a_stopped_program_on_the_login_host_is_seen_by_who_started_it(held: Alice) -> None:
    running = held.start("run", "-a", "dev", write(held, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
    until_printed(running, "ready")
    programs = [
        pid
        for pid, command in held.lab.processes("alice", "login")
        if "sleeper.py" in command and "monarch_hpc.cli" not in command
    ]
    assert len(programs) == 1

    def program() -> list[dict[str, object]]:
        """Its row; none as long as a process does not answer in time, as on a busy machine."""
        done = held.run("status", "--calls", "dev", "--json")
        (allocation,) = json.loads(done.stdout)["allocations"]
        rows = [] if allocation["missing"] else allocation["rows"]
        return [row for row in rows if row["actor"] == "program"]

    def waits(rows: list[dict[str, object]]) -> bool:
        return ["sleeper[0].sleep" in str(row["waits_for"]) for row in rows] == [True]

    def stopped(rows: list[dict[str, object]]) -> bool:
        return waits(rows) and rows[0]["state"] == "stopped by a signal"

    wait_until("its call", program, accept=waits)
    os.kill(programs[0], signal.SIGSTOP)
    wait_until("the program", program, accept=stopped)
    os.kill(programs[0], signal.SIGCONT)
    running.signal_group(signal.SIGINT)
    running.communicate(timeout=180)


@pytest.fixture
def blocked(held: Alice) -> Iterator[Alice]:
    """Nothing passes between login and hosts but Slurm's own connections, as at many sites."""
    with no_connections(held):
        yield held


def test_where_login_and_hosts_cannot_connect_the_relay_carries_everything(blocked: Alice) -> None:
    before = steps(blocked)
    (shown,) = blocked.status("dev")
    assert (shown["state"], shown["link"]) == ("ready", "relay")
    assert "ready over the relay" in blocked.run("status").stdout
    done = blocked.run("run", "-a", "dev", HELLO)
    assert done.returncode == 0, done.stderr
    assert "{'hosts': 3/4, 'gpus': 1/2} hello, world, from n4" in done.stdout and GREETED.search(done.stdout)
    run = blocked.start("run", "-a", "dev", write(blocked, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
    until_printed(run, "ready")
    # Slurm may list a relay of the commands before for a moment after these have ended.
    wait_until(
        "one relay of the command, one of its program",
        lambda: sorted(step.split()[1] for step in steps(blocked)),
        accept=lambda names: names == ["agents", "relay", "relay"],
    )
    kill_all_on_login(blocked)
    run.communicate(timeout=180)
    wait_until("no proc of the killed run", lambda: procs_left(blocked), 120.0, accept=lambda left: not left)
    assert blocked.run("run", "-a", "dev", HELLO).returncode == 0
    wait_for_steps(blocked, before)


def test_other_versions_on_the_other_side_are_refused_with_both_named(held: Alice) -> None:
    (path,) = held.shared.glob("*/attempts/1/ready.json")
    ready = json.loads(path.read_text())
    for change, words in (({"python": "3.9.1"}, "Python differs"), ({"package": "0.0.1"}, "monarch_hpc differs")):
        path.write_text(json.dumps(ready | change))
        done = held.run("run", "-a", "dev", HELLO)
        assert done.returncode == 76
        assert words in done.stderr and "agent.python" in done.stderr
    path.write_text(json.dumps(ready))
    assert held.run("run", "-a", "dev", HELLO).returncode == 0


def test_a_host_without_power_fails_its_calls_and_the_next_run_goes_on_without_it(held_alone: Alice) -> None:
    text = SLEEPER + (
        "try:\n    sleepers.sleep.call().get()\n"
        "except (monarch_hpc.ActorDied, monarch_hpc.MeshError) as error:\n    print('caught', error, flush=True)\n"
        "print('left', len(sleepers.slice(hosts=slice(0, 2)).ready.call().get(60)))\n"
    )
    run = held_alone.start(
        "run",
        "-a",
        "dev",
        write(
            held_alone,
            "lost.py",
            text.replace(
                "time.sleep(600)",
                "print('asleep', flush=True); time.sleep(600 * (monarch_hpc.context().proc.host == 'n3'))",
            ),
        ),
    )
    until_printed(run, "asleep")  # before the call it would be a failure that no call reports
    held_alone.lab.kill_host("n3")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert "n3" in out and "caught" in out and "left 4" in out
    assert "host n3 is lost" in err
    done = held_alone.run("run", "-a", "dev", HELLO)
    assert done.returncode == 0, done.stderr
    assert "from n4" in done.stdout and "from n3" not in done.stdout


def test_an_allocation_that_ends_under_a_run_says_how(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2").returncode == 0
    run = alice.start("run", "-a", "dev", write(alice, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
    until_printed(run, "ready")
    alice.slurm("scancel", "--me")
    _, err = run.communicate(timeout=180)
    assert run.returncode == 72, err
    assert "CANCELLED" in err
    done = alice.run("run", "-a", "dev", HELLO)
    assert done.returncode == 72
    assert "CANCELLED" in done.stderr
