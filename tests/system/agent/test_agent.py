"""Real agents as processes: they start and stop procs, open and close runs, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.agent.output.retention import printed_runs, removed_runs
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.schema import Config
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab.processes import read_command
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, ProcsStopped, SpawnFailed, StopProcs
from monarch_hpc.wire.control.runs import CloseRun, RunClosed
from tests.child import child
from tests.system.support.agent_client import ENTRY, Client, alive, cookie_holders, standin_path


@pytest.fixture
def config() -> Config:
    loaded = load().config
    return replace(loaded, procs=replace(loaded.procs, stop_s=1.0), agent=replace(loaded.agent, grace_s=1.0))


def test_procs_start_speak_and_stop(shared: Path, run: str) -> None:
    code = "print('hello from', start.rank, start.host_name, flush=True); import time; time.sleep(600)"
    with Client(shared, run) as client:
        assert [host.name for host in client.opened.hosts] == ["local0", "local1"]
        mesh = client.spawn([0, 1], 2, code)
        ready = client.wait_all(ProcReady, 4)
        assert sorted((r.proc.rank, r.proc.host, r.incarnation) for r in ready) == [
            (0, 0, "1000"),
            (1, 0, "1001"),
            (2, 1, "1002"),
            (3, 1, "1003"),
        ]
        wait_until("the line of rank 3", lambda: client.lines(mesh, 3) == ["hello from 3 local1"])
        log = shared / "runs" / run / "r0000.local0.log"
        wait_until("the log of rank 0", lambda: log.exists() and log.read_text() == "hello from 0 local0\n")
        assert log.stat().st_mode & 0o777 == 0o600
        client.send(StopProcs(run, mesh, [0, 1], 60.0))
        client.wait_all(ProcsStopped, 2)
        ended = client.wait_all(ProcEnded, 4)
        assert {e.cause for e in ended} == {"signal 15 (SIGTERM)"}
        assert all(e.expected for e in ended)
        assert not any(alive(r.pid) for r in ready)


def test_a_proc_is_a_session_of_its_own_with_the_environment_that_was_asked_for(shared: Path, run: str) -> None:
    code = (
        "import os, sys; assert os.getsid(0) == os.getpid(); assert os.readlink('/proc/self/fd/0') == '/dev/null'\n"
        "names = ['MINE', 'MONARCH_HPC_RUN_COOKIE', 'MONARCH_HPC_HOST']\n"
        "print(*[os.environ[n] for n in names], os.getcwd(), len(os.listdir('/proc/self/fd')))\n"
        "print([n for n in os.environ if n.startswith(('PMI', 'SLURM_STEP', 'SLURM_PROCID'))])\n"
        f"data = open('/proc/self/environ', 'rb').read(); print(b'MONARCH_HPC_RUN_COOKIE={run}' in data)"
    )
    with Client(shared, run) as client:
        mesh = client.spawn([1], 1, code, environment={"MINE": "a b"})
        client.wait(ProcEnded)
        # Descriptors: 0, 1, 2, and the one of the listing.
        assert client.lines(mesh, 0) == [f"a b {run} 1 {os.getcwd()} 4", "[]", "True"]
        assert client.lines(mesh, 0, "err") == []


@pytest.mark.parametrize(
    ("code", "cause", "last"),
    [
        ("print('bye'); code = 3", "exit code 3", ["bye"]),
        ("raise SystemExit('enough')", "exit code 1", ["enough"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9 (SIGKILL)", []),
        ("pass", "exit code 0", []),
    ],
)
def test_an_end_has_its_cause(shared: Path, run: str, code: str, cause: str, last: list[str]) -> None:
    with Client(shared, run) as client:
        client.spawn([0], 1, code)
        ended = client.wait(ProcEnded)
        assert (ended.cause, ended.last_lines, ended.expected) == (cause, last, False)


def test_a_segmentation_fault_leaves_the_python_stack(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        client.spawn([0], 1, "import faulthandler; faulthandler._sigsegv()")
        ended = client.wait(ProcEnded)
        assert ended.cause == "signal 11 (SIGSEGV)"
        assert "Fatal Python error: Segmentation fault" in ended.last_lines


def test_a_proc_that_fails_before_it_is_ready(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        client.spawn([0, 1], 1, before="raise RuntimeError('no such device')")
        failures = client.wait_all(SpawnFailed, 2)
        assert {f.cause for f in failures} == {"exit code 1"}
        assert all(f.last_lines[-1] == "RuntimeError: no such device" for f in failures)


def test_a_proc_that_is_never_ready(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        client.spawn([0], 1, before="import time; time.sleep(600)", deadline_s=0.3)
        failure = client.wait(SpawnFailed)
        assert failure.cause == "it was not ready after 0.3 s (config key 'procs.start_s')"


def test_a_preload_that_cannot_be_imported_says_why(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("import module_that_is_not_there\n")
    with Client(directory, "aaaaaaaa") as client:
        client.spawn([0], 2, preload=["broken_module"])
        failures = client.wait_all(SpawnFailed, 2)
        assert {f.cause for f in failures} == {"a module to preload cannot be imported"}
        assert failures[0].last_lines[-1] == "ModuleNotFoundError: No module named 'module_that_is_not_there'"
        # The next order is not affected.
        client.spawn_ready([0])


def test_a_preload_is_imported_once_and_shared(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import os\nowner = os.getpid()\n")
    with Client(directory, "aaaaaaaa") as client:
        code = "import sys; print(sys.modules['slow_module'].owner)"
        mesh = client.spawn([0], 2, code, preload=["slow_module"])
        client.wait_all(ProcEnded, 2)
        assert client.lines(mesh, 0) == client.lines(mesh, 1) != []


def test_a_run_that_spawns_many_meshes_delays_no_other(shared: Path, run: str) -> None:
    with Client(shared, run) as many, Client(shared, f"{run}-b") as one:
        (first,) = many.spawn_ready([0])
        agent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        (zygote,) = (int(pid) for pid in children if int(pid) != first)
        os.kill(zygote, signal.SIGSTOP)  # so that all orders wait
        try:
            meshes = [many.spawn([0]) for _ in range(50)]
            wanted, unwanted = meshes[:25], meshes[25:]
            own, given_up = one.spawn([0]), one.spawn([0])
            for client, gone in ((many, unwanted), (one, [given_up])):
                for mesh in gone:
                    client.send(StopProcs(client.run, mesh, [0], 1.0))
                failed = client.wait_all(SpawnFailed, len(gone))
                assert {failure.cause for failure in failed} == {"stopped before it was forked"}
        finally:
            os.kill(zygote, signal.SIGCONT)
        (pid,) = one.pids(own, 1)
        # Counted from the first one: numbers of processes begin again at the highest.
        highest = int(Path("/proc/sys/kernel/pid_max").read_text())
        others = [other for mesh in wanted for other in many.pids(mesh, 1)]
        before = [other for other in others if (other - first) % highest < (pid - first) % highest]
        assert len(before) < 5, "the runs do not take turns"


def test_a_killed_zygote_is_replaced(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        first = client.spawn_ready([0])
        agent = int(Path(f"/proc/{first[0]}/stat").read_text().rpartition(")")[2].split()[1])
        children = [
            int(pid)
            for task in Path(f"/proc/{agent}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
        zygotes = [pid for pid in children if pid not in first]
        assert len(zygotes) == 1
        os.kill(zygotes[0], signal.SIGKILL)
        wait_until("the burial of the zygote", lambda: not Path(f"/proc/{zygotes[0]}").exists())
        client.spawn_ready([0])
        assert alive(first[0])


_DAEMON = """
import os, time
read, write = os.pipe()
if not os.fork():
    os.setsid()
    os.setuid(65534)
    if not os.fork():
        os.write(write, str(os.getpid()).encode())
        time.sleep(600)
    os._exit(0)
print(os.read(read, 10).decode(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_daemon_that_became_another_user_ends_with_its_run(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        mesh = client.spawn([0], 1, _DAEMON)
        wait_until("the daemon's process id", lambda: client.lines(mesh, 0))
        daemon = int(client.lines(mesh, 0)[0])
        assert os.stat(f"/proc/{daemon}").st_uid == 65534
    wait_until("the end of the daemon", lambda: not alive(daemon))


def states(directory: Path) -> list[object]:
    status = query_status(directory, 60.0)
    return [host["state"] for host in status["hosts"]] if status else []


def test_two_runs_at_once(shared: Path, run: str) -> None:
    with Client(shared, run) as one, Client(shared, f"{run}-b") as two:
        first, second = one.spawn_ready([0, 1]), two.spawn_ready([0, 1])
        assert one.opened.member != two.opened.member
        status = query_status(shared, 60.0)
        assert status is not None
        assert [(run["run"], run["procs"], run["state"]) for run in status["runs"]] == [
            (run, 2, "running"),
            (f"{run}-b", 2, "running"),
        ]
        assert [(host["name"], host["procs"]) for host in status["hosts"]] == [("local0", 2), ("local1", 2)]
        wait_until("both hosts", lambda: states(shared), accept=lambda seen: seen == ["alive", "alive"])
        one.send(CloseRun(run, 0))
        one.wait(RunClosed)
        assert not any(alive(pid) for pid in first)
        assert all(alive(pid) for pid in second), two.messages
        assert not [m for m in two.messages if isinstance(m, ProcEnded)]


def test_a_run_takes_along_what_its_procs_left(shared: Path, run: str) -> None:
    # Of the children one keeps the environment, one clears it, one is forked without exec: all in their own sessions.
    code = (
        "import os, subprocess, sys, time\n"
        "for command in (['sleep', '601'], ['env', '-i', 'sleep', '602']):\n"
        "    print(subprocess.Popen(['setsid', *command], stdout=subprocess.DEVNULL).pid)\n"
        "pid = os.fork()\n"
        "if not pid:\n    os.setsid(); time.sleep(603); os._exit(0)\n"
        "print(pid); time.sleep(600)"
    )
    with Client(shared, run) as client:
        mesh = client.spawn([0], 1, code)
        wait_until("three children", lambda: len(client.lines(mesh, 0)) == 3)
        children = [int(line) for line in client.lines(mesh, 0)]
        assert all(alive(pid) for pid in children)
        client.send(CloseRun(run, 0))
        client.wait(RunClosed)
        assert not any(alive(pid) for pid in children)


@pytest.mark.parametrize("name", ["short", "abcdef012345", "a-name-of-16-is."])
def test_a_run_takes_along_what_its_procs_forked_while_another_goes_on(shared: Path, run: str, name: str) -> None:
    code = (
        "import os, time\n"
        "pid = os.fork()\n"
        "if not pid:\n    os.setsid(); time.sleep(603); os._exit(0)\n"
        "print(pid); time.sleep(600)"
    )
    with Client(shared, run) as other, Client(shared, name) as client:
        (bystander,) = other.spawn_ready([0])
        mesh = client.spawn([0], 1, code)
        wait_until("a child", lambda: client.lines(mesh, 0))
        child = int(client.lines(mesh, 0)[0])
        client.send(CloseRun(name, 0))
        client.wait(RunClosed)
        assert not alive(child) and alive(bystander)


def test_a_closed_run_takes_no_orders(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        client.spawn_ready([0])
        client.send(CloseRun(run, 0))
        client.spawn([0], 2)
        failures = client.wait_all(SpawnFailed, 2)
        assert {f.cause for f in failures} == {"the run is over"}


def test_a_second_controller_of_a_run_takes_only_its_own_procs_along(shared: Path, run: str) -> None:
    with Client(shared, run) as owner:
        kept = owner.spawn_ready([0])
        with Client(shared, run, owner=False) as second:
            gone = second.spawn_ready([1])
        wait_until("the end of the second controller's proc", lambda: not alive(gone[0]))
        assert alive(kept[0])


def test_procs_that_ignore_sigterm_are_killed_after_the_grace(shared: Path, run: str) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed'); time.sleep(600)"
    with Client(shared, run) as client:
        mesh = client.spawn([0], 1, code)
        wait_until("the handler", lambda: client.lines(mesh, 0))
        client.send(StopProcs(run, mesh, [0], 0.2))
        ended = client.wait(ProcEnded)
        assert (ended.expected, ended.cause) == (True, "signal 9 (SIGKILL)")
        client.wait(ProcsStopped)


def test_a_flood_of_lines_harms_nobody(shared: Path, run: str) -> None:
    line = "x" * 100
    with Client(shared, run) as client:
        mesh = client.spawn([0], 1, f"for i in range(200_000): print({line!r})\nprint('last')")
        client.wait(ProcEnded)
        assert client.lines(mesh, 0)[-1] == "last"
        log = shared / "runs" / run / "r0000.local0.log"
        wait_until("the whole log", lambda: log.stat().st_size == 200_000 * 101 + 5)


def test_shut_down_leaves_nothing(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.spawn_ready([0, 1], 2)
        assert shut_down(directory, 1.0) == {"local0": 0, "local1": 0}
        wait_until("the loss of the head", lambda: client.lost)
        assert not any(alive(pid) for pid in pids)
        wait_until("the end of the agents", lambda: not cookie_holders(directory))
        assert query_status(directory, 2.0) is None


def test_a_second_agent_of_a_host_is_refused(shared: Path, run: str) -> None:
    head, argv = next(
        (pid, words) for pid in cookie_holders(shared) if "--rank" in (words := read_command(pid)) and "1" in words
    )
    key = (shared / "key").read_bytes()
    argv = [word for word in argv if word != "--lifeline"]
    del argv[(at := argv.index("--held")) : at + 2]  # a descriptor that this process does not inherit
    with Client(shared, run) as client:
        pids = client.spawn_ready([0, 1])
        with child(subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE)) as second:
            # To the end of its zygote, too, which holds the other end of the pipe.
            _, err = second.communicate(key, timeout=60)
        assert second.returncode == 1
        assert b"host 1 has an agent already: process %d on local1" % head in err
        client.spawn_ready([0, 1])
        assert all(alive(pid) for pid in pids), client.messages


def test_the_files_of_runs_that_ended_long_ago_go(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", standin_path(tmp_path))
    config = replace(config, logs=replace(config.logs, keep_runs=2))
    code = "print('hello', flush=True); import time; time.sleep(600)"
    with open_local(1, config, entry=ENTRY) as directory, Client(directory, "stays") as stays:
        stays.spawn_ready([0], code=code)
        for name in (f"run{number}" for number in range(4)):
            with Client(directory, name) as client:
                client.spawn_ready([0], code=code)
                wait_until(f"what {name} prints", lambda: name in printed_runs(directory))  # noqa: B023 called at once
                client.send(CloseRun(name, 0))
                client.wait(RunClosed)
        wait_until("the end of two runs' files", lambda: set(printed_runs(directory)) == {"stays", "run2", "run3"})
        assert removed_runs(directory) == ["run0", "run1"]
