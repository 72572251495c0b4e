"""A killed program leaves nothing behind: no secret in the temporary folder, no shared memory, no process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from monarch_hpc.core.machine.procfs import each_pid, read_stat
from monarch_hpc.testing import wait_until
from tests.system.hosts.test_workers import start_worker
from tests.system.support.paths import paths_below
from tests.system.support.programs import Programs, programs, shown_environ

__all__ = ["programs"]

HEAD = """
import os, sys, time
from monarch_hpc.actor import Actor, attach_to_workers, context, endpoint, hosts, this_host
from monarch_hpc.job import LocalJob, ProcessJob, hosts_from_config, job_load

class One(Actor):
    @endpoint
    def pid(self): return os.getpid()
"""

TAIL = """
procs = mesh.spawn_procs(per_host={"gpus": 2})
procs.spawn("one", One).pid.call().get()
print("up", context().proc.allocation, flush=True)
time.sleep(600)
"""

MODES = {
    "embedded": "mesh = this_host()",
    "attached": "mesh = attach_to_workers(workers=sys.argv[1:])",
    "a job that is not saved": "mesh = ProcessJob({'a': 2}).state(cached_path=None).a",
    "a job that is applied only": "job = ProcessJob({'a': 2}); job.apply(); mesh = job._state().a",
    "no configuration": "mesh = hosts_from_config('grid')",
    "run": """
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", __file__, "again"])
mesh = hosts()
""",
}


@pytest.fixture
def temporary(programs: Programs) -> Path:
    """The temporary folder of the test's programs."""
    folder = programs.folder / "t"
    folder.mkdir()
    programs.environment["TMPDIR"] = str(folder)
    return folder


def start(programs: Programs, text: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a program; return it and the allocation that it uses."""
    program = programs.start(HEAD + text + TAIL, *arguments)
    output = programs.until(program, "up ")
    return program, output.split()[-1]


def left(programs: Programs, temporary: Path, allocations: Sequence[str]) -> list[str]:
    """Files, shared memory and processes of these allocations; workers that were started by hand do not count."""
    memory = [path.name for path in Path("/dev/shm").iterdir() if any(each in path.name for each in allocations)]
    files = [str(path.relative_to(temporary)) for path in paths_below(temporary)]
    return sorted([*memory, *files, *(f"process {pid}" for pid in [*programs.procs(), *job_workers(temporary)])])


def job_workers(temporary: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{temporary}/monarch-hpc-job-".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_a_killed_program_stays(programs: Programs, temporary: Path, mode: str) -> None:
    arguments = ["ipc://w0", "ipc://w1"] if mode == "attached" else []
    for address in arguments:
        start_worker(programs, address)
    program, allocation = start(programs, MODES[mode], *arguments)
    there = left(programs, temporary, [allocation])
    assert any("key" in each for each in there) and any(allocation in each for each in there), there
    os.kill(program.pid, signal.SIGKILL)
    wait_until("nothing", lambda: left(programs, temporary, [allocation]), accept=lambda there: not there)


@pytest.mark.parametrize("mode", ["embedded", "attached", "run"])
def test_nothing_of_a_killed_program_stays_though_all_that_would_end_it_is_stopped(
    programs: Programs, temporary: Path, mode: str
) -> None:
    """A stopped process does not see that its input has ended, nor any signal but SIGKILL and SIGCONT."""
    arguments = ["ipc://w0", "ipc://w1"] if mode == "attached" else []
    workers = [start_worker(programs, address)[0] for address in arguments]
    program, allocation = start(programs, MODES[mode], *arguments)
    send(signal.SIGSTOP, named(programs, "monarch-agent", "monarch-zygote"))
    for one in [*workers, program]:
        os.kill(one.pid, signal.SIGKILL)
    wait_until("nothing", lambda: left(programs, temporary, [allocation]), accept=lambda there: not there)


def test_no_process_of_a_killed_agent_stays_though_its_zygote_is_stopped(programs: Programs, temporary: Path) -> None:
    program, _ = start(programs, MODES["embedded"])
    send(signal.SIGSTOP, named(programs, "monarch-zygote"))
    send(signal.SIGKILL, named(programs, "monarch-agent"))
    wait_until("the end of the zygote", lambda: named(programs, "monarch-zygote"), accept=lambda pids: not pids)
    program.kill()
    wait_until("no process", lambda: everybody(programs), accept=lambda pids: not pids)


def named(programs: Programs, *names: str) -> list[int]:
    """The processes with these names, as in top."""
    found = []
    for pid in everybody(programs):
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                found.append(pid)
    return found


def test_nothing_of_killed_workers_stays(programs: Programs, temporary: Path) -> None:
    workers = [start_worker(programs, address)[0] for address in ("ipc://w0", "ipc://w1")]
    program, allocation = start(programs, MODES["attached"], "ipc://w0", "ipc://w1")
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    os.kill(program.pid, signal.SIGKILL)
    wait_until("nothing", lambda: left(programs, temporary, [allocation]), accept=lambda there: not there)


def test_a_saved_job_stays_until_it_is_killed(programs: Programs, temporary: Path) -> None:
    program, allocation = start(programs, "mesh = ProcessJob({'a': 2}).state().a")
    os.kill(program.pid, signal.SIGKILL)
    wait_until("no proc", programs.procs, accept=lambda pids: not pids)
    assert len(job_workers(temporary)) == 2
    second, other = start(programs, "mesh = ProcessJob({'a': 2}).state().a")
    assert other != allocation
    second.kill()
    programs.run(HEAD + "job_load().kill()")
    wait_until("nothing", lambda: left(programs, temporary, [allocation, other]), accept=lambda there: not there)


def test_what_is_left_of_a_job_goes_when_the_next_one_is_made(programs: Programs, temporary: Path) -> None:
    saved = HEAD + "ProcessJob({'a': 2}).state()"
    programs.run(saved)
    first = {path.name for path in temporary.iterdir()}
    gone, kept = job_workers(temporary)
    os.kill(gone, signal.SIGKILL)
    wait_until("its end", lambda: job_workers(temporary), accept=lambda pids: pids == [kept])
    programs.run(saved)
    wait_until("the end of the first job", lambda: kept not in job_workers(temporary))
    assert len(job_workers(temporary)) == 2
    wait_until("the end of its files", lambda: not first & {path.name for path in temporary.iterdir()})
    programs.run(HEAD + "job_load().kill()")
    wait_until("nothing", lambda: left(programs, temporary, []), accept=lambda there: not there)


def test_a_job_whose_hosts_are_shut_down_leaves_nothing(programs: Programs, temporary: Path) -> None:
    programs.run(HEAD + "ProcessJob({'a': 2}).state().a.shutdown()")
    wait_until("nothing", lambda: left(programs, temporary, []), accept=lambda there: not there)


def test_what_even_agents_and_workers_could_not_remove_goes_with_the_next_use(
    programs: Programs, temporary: Path
) -> None:
    _, first = start(programs, MODES["embedded"])
    _, second = start(programs, "mesh = ProcessJob({'a': 1}).state().a")
    start_worker(programs, "ipc://w0")
    _, third = start(programs, MODES["attached"], "ipc://w0")
    kill_all_at_once(programs)
    allocations = [first, second, third]
    wait_until("no process", lambda: everybody(programs), accept=lambda pids: not pids)
    there = left(programs, temporary, allocations)
    # The folders of the embedded allocation, of the job, and of the two allocations of workers.
    # Their shared memory may be gone: every program of this user on the machine removes it, also those of other tests.
    assert sum(each.endswith("/key") for each in there) == 4, there
    programs.run(HEAD + "this_host().spawn_procs().spawn('one', One).pid.call().get()")
    wait_until("nothing", lambda: left(programs, temporary, allocations), accept=lambda there: not there)


def kill_all_at_once(programs: Programs) -> None:
    """Kill them so that none sees the end of another: a process may be forked while the others are stopped."""
    stopped: set[int] = set()
    while new := set(everybody(programs)) - stopped:
        send(signal.SIGSTOP, new)
        stopped |= new
    # Children first: the death of its parent lets an agent, or a zygote, go on.
    send(signal.SIGKILL, sorted(stopped, key=depth, reverse=True))


def depth(pid: int) -> int:
    """The number of a process's ancestors."""
    stat = read_stat(pid)
    return 0 if stat is None or not stat.parent else 1 + depth(stat.parent)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def everybody(programs: Programs) -> list[int]:
    """Programs, workers, agents, zygotes, procs, and all processes that they started."""
    return [pid for pid in each_pid() if programs.mark in shown_environ(pid)]
