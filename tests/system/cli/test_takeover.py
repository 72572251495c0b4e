"""Programs that are killed, and others that take their runs over."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.system.support.agent_client import alive
from tests.system.support.first_host import call, detach, finish, runs, script, start
from tests.system.support.takeovers import account, begin, kill_program, now, ready, taken_after_s, write_program

KILLS = 10

FIRST = """
import os, sys, time
import monarch_hpc
from worker import Worker
procs = monarch_hpc.hosts().spawn_procs(per_host={"p": 1}, name="procs")
work = procs.spawn("work", Worker)
pids = [pid for _, pid in work.pid.call().get()]
one = work.slice(hosts=0, p=0)
"""
FOREVER = "print('ready', *pids, flush=True)\nwhile True: time.sleep(60)\n"


def hold(home: Path, text: str, *words: str, hold_s: str = "600") -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a program under ``--on-loss hold``; return the command and the program's procs."""
    write_program(home)
    command = start(
        home,
        "run",
        "-a",
        "dev",
        "--on-loss",
        "hold",
        *words,
        script(home, FIRST + text + FOREVER),
        MONARCH_HPC_RUN__HOLD_S=hold_s,
    )
    assert command.stdout is not None
    line = command.stdout.readline().decode().split()
    assert line[:1] == ["ready"], finish(command)
    return command, [int(pid) for pid in line[1:]]


def take(home: Path, run: str, text: str, *words: str) -> tuple[int, str, str]:
    """Take a run over with a program that begins with that, and ends the procs at its end."""
    program = "import monarch_hpc, os\ntaken = monarch_hpc.takeover()\nwork = taken.meshes['work']\n"
    return call(home, "attach", run, "-a", "dev", "--takeover", *words, "--", script(home, program + text))


@pytest.mark.slow  # each takeover starts two interpreters
def test_of_programs_that_are_killed_no_answer_is_lost_or_read_twice(home: Path) -> None:
    moments, began = random.Random(11), dict[str, float]()
    write_program(home)
    command = begin(home, "run", "-a", "dev", "--on-loss", "hold", "program.py", "p0")
    (run,) = runs(home)
    for number in range(1, KILLS + 1):
        time.sleep(moments.uniform(0, 0.1))  # the program is killed wherever it is
        kill_program(command)
        code, _, err = finish(command)
        assert (code, f"attach {run} -a dev --takeover" in err) == (137, True), err
        began[f"p{number}"] = now()
        command = begin(home, "attach", run, "-a", "dev", "--takeover", "--", "program.py", f"p{number}")
    kill_program(command)
    finish(command)
    last = (home / "program.py").read_text().partition("one = work")[0] + "procs = taken.meshes['procs']\n"
    (home / "last.py").write_text(last + "procs.stop().get()\n")
    assert call(home, "attach", run, "--takeover", "--", "last.py", "last")[0] == 0
    found = account(home)
    assert (found.lost, found.twice) == ([], []), found
    assert len(found.found) <= KILLS + 1
    assert run not in runs(home)
    print(f"ruled after {statistics.median(taken_after_s(home, began)):.2f} s")


def test_a_program_that_is_killed_before_its_command_owns_the_run_has_a_successor(home: Path) -> None:
    write_program(home)
    program = script(home, f"{FIRST}print('ready', flush=True)\nwhile True: time.sleep(60)\n")
    command = start(home, "run", "-a", "dev", "--on-loss", "hold", program, MONARCH_HPC_FAILPOINTS="run.owner=stop")
    ready(command)
    (run,) = runs(home)
    kill_program(command)
    os.kill(command.pid, signal.SIGCONT)
    assert finish(command)[0] == 137
    assert take(home, run, "print(len(work.pid.call().get()))") == (0, "2\n", "")


@pytest.mark.parametrize("on_loss", ["hold", "finish"])
@pytest.mark.parametrize("before", ["", "import monarch_hpc; monarch_hpc.hosts()"], ids=["no hosts", "no procs"])
def test_a_run_without_procs_ends_with_its_program_and_says_so(home: Path, on_loss: str, before: str) -> None:
    program = script(home, f"import os, signal\n{before}\nos.kill(os.getpid(), signal.SIGKILL)\n")
    code, _, err = call(home, "run", "-a", "dev", "--on-loss", on_loss, program)
    assert code == 137
    assert "has ended with it: there were no procs to keep" in err
    assert "takeover" not in err
    wait_until("the end of the run", lambda: runs(home), accept=lambda left: not left)


def test_a_killed_program_leaves_what_it_asked_for_and_actors_that_go_on(home: Path) -> None:
    (home / "go").unlink(missing_ok=True)
    text = "calls = [one.odd.call_one(), one.trap.call_one(), one.blob.call_one(9), one.wait_for.call_one('go', 5)]\n"
    command, pids = hold(home, f"{text}for call in calls[:3]: call.exception()\nmore = one.work.call_one('unread')\n")
    (run,) = runs(home)
    kill_program(command)
    assert finish(command)[0] == 137
    (home / "go").touch()
    reads = """
for answer in taken.unfetched:
    try:
        value = answer.get(60)
    except Exception as error:
        value = type(error).__name__
    print(answer.mesh, answer.endpoint, answer.rank, value)
print([pid for _, pid in work.pid.call().get()], type(work).__name__, work.extent, sorted(taken.meshes))
print(taken.problems, taken.num_dropped, [answer for answer in taken.unfetched if not answer.done()])
"""
    code, out, err = take(home, run, reads)
    assert (code, err) == (0, ""), err
    *answers, now_there, rest = out.splitlines()
    assert sorted(answers) == ["work wait_for 0 5", "work work 0 unread"]
    assert now_there == f"{pids} ActorMesh {{hosts: 2, p: 1}} ['procs', 'work']"
    assert rest == "{} 0 []"
    # What has been taken over ends with the program, as all procs do.
    wait_until("the end of the procs", lambda: [pid for pid in pids if alive(pid)], accept=lambda left: not left)
    assert run not in runs(home)


def test_hostile_answers_and_unknown_classes_break_no_takeover(home: Path) -> None:
    text = "class Own(monarch_hpc.Actor):\n    @monarch_hpc.endpoint\n    def none(self): pass\n"
    spawn = "own = procs.spawn('own', Worker2)\nown.work.call('x').get()\n"
    (home / "another.py").write_text("from worker import Worker\nclass Worker2(Worker): pass\n")
    calls = "calls = [one.odd.call_one(), one.trap.call_one()]\none.pid.call_one().get()\n"
    command, _ = hold(home, f"{text}from another import Worker2\n{spawn}{calls}")
    (run,) = runs(home)
    kill_program(command)
    finish(command)
    (home / "another.py").unlink()
    reads = """
for answer in taken.unfetched:
    print(answer.endpoint, type(answer.exception(60)).__mro__[1].__name__, str(answer.exception()).splitlines()[0])
print(taken.problems)
print(work.work.call("after").get().item(hosts=0, p=0))
"""
    code, out, err = take(home, run, reads)
    assert code == 0, err
    first, second, problems, after = out.splitlines()
    assert first.startswith("odd ") and "an odd one" in first
    assert second.startswith("trap ") and "a trap" in second
    assert "its class another.Worker2 cannot be loaded here" in problems and "No module named 'another'" in problems
    assert after == "after"


def test_a_program_that_lives_is_told_and_of_two_successors_one_rules(home: Path) -> None:
    command, pids = hold(home, "")
    (run,) = runs(home)
    stay = script(
        home,
        "import monarch_hpc, time, os\ntaken = monarch_hpc.takeover()\nprint('ready', flush=True)\ntime.sleep(600)\n",
    )
    both = [start(home, "attach", run, "-a", "dev", "--takeover", "--", stay) for _ in range(2)]
    code, _, err = finish(command)
    assert code == 77 and f"another program has taken over run {run}" in err, err
    wait_until("the end of one", lambda: [one.poll() for one in both], accept=lambda codes: codes.count(None) == 1)
    (loser,) = [one for one in both if one.poll() is not None]
    (ruler,) = [one for one in both if one.poll() is None]
    code, _, err = finish(loser)
    assert code == 77 and f"taken over run {run}" in err, err
    assert ruler.stdout is not None and ruler.stdout.readline() == b"ready\n"
    assert all(alive(pid) for pid in pids)
    ruler.send_signal(signal.SIGTERM)  # asked to end: that is no loss
    finish(ruler)
    call(home, "attach", run, "-a", "dev", "--takeover", "--", script(home, END))
    wait_until("the end of the procs", lambda: [pid for pid in pids if alive(pid)], accept=lambda left: not left)


END = "import monarch_hpc\nmonarch_hpc.takeover()\n"


def test_nobody_waits_longer_than_hold_s_and_by_default_nobody_at_all(home: Path) -> None:
    command, pids = hold(home, "", hold_s="1")
    (run,) = runs(home)
    kill_program(command)
    finish(command)
    wait_until("the end of the procs", lambda: [pid for pid in pids if alive(pid)], accept=lambda left: not left)
    wait_until("the end of the run", lambda: run in runs(home), accept=lambda there: not there)
    code, _, err = take(home, run, "")
    assert code != 0 and f"there is no run {run} to take over" in err
    command, pids = hold(home, "", "--on-loss", "stop")
    kill_program(command)
    code, _, err = finish(command)
    assert (code, "takeover" in err) == (137, False)
    wait_until("the end of the procs", lambda: [pid for pid in pids if alive(pid)], accept=lambda left: not left)


def test_a_program_on_the_first_host_is_held_too_and_what_died_meanwhile_says_so(home: Path) -> None:
    write_program(home)
    text = script(
        home,
        FIRST + "import pathlib\npathlib.Path('pids').write_text(' '.join(map(str, [os.getpid(), *pids])))\n" + FOREVER,
    )
    (home / "pids").unlink(missing_ok=True)
    run = detach(home, "--on-loss", "hold", text)
    told = wait_until("its procs", lambda: (home / "pids").read_text() if (home / "pids").exists() else "")
    program, first, second = map(int, told.split())
    os.kill(program, signal.SIGKILL)
    assert call(home, "attach", run)[0] == 137
    os.kill(second, signal.SIGKILL)
    wait_until("the end of one proc", lambda: alive(second), accept=lambda there: not there)
    reads = """
print(work.slice(hosts=0, p=0).work.call_one("there").get())
try:
    work.slice(hosts=1, p=0).work.call_one("gone").get()
except monarch_hpc.SupervisionError as error:
    print(type(error).__name__, error)
"""
    code, out, err = take(home, run, reads)
    assert code == 0, err
    there, gone = out.splitlines()
    assert there == "there" and gone.startswith("ProcDied") and "before this program took the run over" in gone
    wait_until("the end of the other", lambda: alive(first), accept=lambda there: not there)


def test_a_takeover_names_a_run_and_a_program(home: Path) -> None:
    for words in (["--takeover"], ["abc", "--takeover"], ["abc", "--", "x.py"]):
        code, _, err = call(home, "attach", *words)
        assert code == 64 and "attach RUN --takeover -- SCRIPT" in err
    code, _, err = call(home, "run", "--local", "1", "--on-loss", "hold", "x.py")
    assert code == 64 and "nothing to hold" in err


def test_finish_ends_the_procs_when_their_calls_have_ended(home: Path) -> None:
    (home / "go").unlink(missing_ok=True)
    calls = "calls = [one.wait_for.call_one('go', 5), one.work.call_one('queued')]\n"
    command, pids = hold(home, calls, "--on-loss", "finish")
    kill_program(command)
    assert "finish their calls, and end then: 'monarch-hpc attach" in finish(command)[2]
    assert all(alive(pid) for pid in pids)
    (home / "go").touch()
    wait_until("the end of the procs", lambda: [pid for pid in pids if alive(pid)], accept=lambda left: not left)
    assert (home / "executed").read_text() == "queued\n"
    wait_until("the end of the run", lambda: runs(home), accept=lambda left: not left)
