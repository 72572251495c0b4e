"""`monarch-hpc run` as users start it: exit codes, streams and signals pass through, and no process is left."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.core.storage.files import read_json, write_json
from monarch_hpc.slurm.record import AllocationRecord, current_owner
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab.processes import read_command
from tests.system.support.agent_client import alive, cookie_holders
from tests.system.support.first_host import ENDING

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
print(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "directory": os.environ["MONARCH_HPC_DIRECTORY"],
                  "run": os.environ["MONARCH_HPC_RUN"], "argv": sys.argv[1:]}), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a program in it."""
    (tmp_path / "program.py").write_text(SCRIPT)
    return tmp_path


def start(
    folder: Path, *words: str, stdin: int = subprocess.DEVNULL, before: Sequence[str] = (), session: bool = False
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *before, "-m", "monarch_hpc.cli", "run", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.getcwd()},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=session,
    )


def finish(process: subprocess.Popen[bytes], feed: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(feed, timeout=120)
    return process.returncode, out.decode(), err.decode().replace(ENDING, "")


def add(folder: Path, code: str) -> None:
    (folder / "program.py").write_text(SCRIPT + code)


def first_line(process: subprocess.Popen[bytes]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read().decode()
    found: dict[str, object] = json.loads(line)
    return found


def gone(report: dict[str, object]) -> bool:
    directory = Path(str(report["directory"]))
    return not directory.exists() and not cookie_holders(directory)


def until_gone(report: dict[str, object]) -> None:
    """The run has ended its allocation; a process that it killed is there until the kernel runs it once more."""
    assert not Path(str(report["directory"])).exists()
    wait_until("the end of its processes", lambda: gone(report))


def test_arguments_output_and_exit_code_pass(folder: Path) -> None:
    add(folder, "print(sys.stdin.read().upper(), file=sys.stderr); sys.exit(3)")
    words = ["--local", "1", "program.py", "-x", "--local", "a b", "--"]
    code, out, err = finish(start(folder, *words, stdin=subprocess.PIPE), b"input")
    assert (code, err) == (3, "INPUT\n")
    report = json.loads(out)
    assert report["argv"] == ["-x", "--local", "a b", "--"]
    until_gone(report)


def test_without_an_allocation_it_says_where_it_runs(folder: Path) -> None:
    code, out, err = finish(start(folder, "program.py"))
    assert (code, err) == (0, "no allocation: running on one embedded host of this machine\n")
    until_gone(json.loads(out))


def test_a_command_runs_as_it_is(folder: Path) -> None:
    code, out, err = finish(start(folder, "--local", "1", "--", "sh", "-c", 'echo "$0 $1"; kill -9 $$', "-a", "b c"))
    assert (code, out, err) == (137, "-a b c\n", "")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nothing.py"], 66, "script 'nothing.py' is not found in {folder}"),
        (["sleep"], 66, "script 'sleep' is not found in {folder}; to run a command write 'run -- sleep'"),
        (["."], 66, "script '.' is a directory"),
        (["--", "no-such-command"], 127, "command 'no-such-command' is not found on PATH"),
        (["--", "./program.py"], 126, "'./program.py' is not executable"),
        (["-a", "x", "--local", "2", "program.py"], 64, "--allocation and --local exclude each other"),
        (["-a", "x", "program.py"], 72, "allocation 'x': no such allocation (live: none)"),
    ],
)
def test_what_cannot_run_has_a_sentence(folder: Path, words: list[str], code: int, sentence: str) -> None:
    status, out, err = finish(start(folder, *words))
    assert (status, out) == (code, "")
    assert err.startswith("monarch-hpc: error: " + sentence.format(folder=folder)), err


def test_a_wrong_configuration_leaves_nothing_of_the_hosts_that_have_begun_to_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := folder / "tmp").mkdir(0o700)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv("MONARCH_HPC_PROCS__STOP_S", "soon")
    code, out, err = finish(start(folder, "--local", "2", "program.py"))
    assert (code, out) == (65, "")
    assert err.startswith("monarch-hpc: error: ") and "procs.stop_s" in err and "$MONARCH_HPC_PROCS__STOP_S" in err
    assert list(place.iterdir()) == []


def test_a_signal_reaches_the_program_once_and_the_run_waits_for_it(folder: Path) -> None:
    add(
        folder,
        "got = []\nfor n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, lambda n, _: got.append(n))\n"
        "print('armed', flush=True)\nwhile not got: time.sleep(0.01)\ntime.sleep(0.3); print(got); sys.exit(7)",
    )
    process = start(folder, "--local", "1", "program.py")
    report = first_line(process)
    assert process.stdout is not None and process.stdout.readline() == b"armed\n"
    process.send_signal(signal.SIGTERM)
    code, out, _ = finish(process)
    assert (code, out) == (7, f"[{signal.SIGTERM:d}]\n")
    until_gone(report)


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("time.sleep(600)", ""),
        ("signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(3)))\ntime.sleep(600)", "saved\n"),
    ],
    ids=["by SIGTERM", "after it has saved"],
)
def test_a_limit_of_time_ends_the_program_with_124(folder: Path, code: str, last: str) -> None:
    add(folder, code)
    code_, out, err = finish(start(folder, "--timeout", "2s", "program.py"))
    assert code_ == 124, err
    assert out.partition("\n")[2] == last
    assert "the program was ended: its limit of 2 s was over" in err
    add(folder, "sys.exit(3)")  # in time
    assert finish(start(folder, "--timeout", "2h", "program.py"))[0] == 3


def test_with_raw_exit_codes_a_failure_of_ours_is_1_and_the_programs_own_are_unchanged(folder: Path) -> None:
    for words, code, raw in ((["missing.py"], 66, 1), (["-a", "nowhere", "program.py"], 72, 1), (["--local"], 64, 64)):
        assert finish(start(folder, *words))[0] == code
        assert finish(start(folder, "--exit-raw", *words))[0] == raw
    add(folder, "sys.exit(72)")
    assert finish(start(folder, "--exit-raw", "program.py"))[0] == 72


def test_a_program_that_does_not_end_is_killed_after_the_grace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HPC_RUN__STOP_GRACE_S", "0.3")
    add(folder, "signal.signal(signal.SIGINT, signal.SIG_IGN); print('armed', flush=True); time.sleep(600)")
    process = start(folder, "--local", "1", "program.py")
    report = first_line(process)
    assert process.stdout is not None and process.stdout.readline() == b"armed\n"
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 137
    until_gone(report)


def test_ctrl_c_at_a_terminal_reaches_the_program_once(folder: Path) -> None:
    add(
        folder,
        "got = []\nsignal.signal(signal.SIGINT, lambda n, _: got.append(n))\nprint('armed', flush=True)\n"
        "while not got: time.sleep(0.01)\ntime.sleep(0.3); print(got, flush=True)",
    )
    ours, theirs = pty.openpty()
    # A session whose terminal is the pty, with the run as its foreground group.
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    before = ["-c", take, sys.executable]
    process = start(folder, "--local", "1", "program.py", stdin=theirs, before=before, session=True)
    os.close(theirs)
    report = first_line(process)
    assert process.stdout is not None and process.stdout.readline() == b"armed\n"
    os.write(ours, b"\x03")
    code, out, err = finish(process)
    os.close(ours)
    assert (code, out, err) == (0, "[2]\n", "")
    until_gone(report)


def test_a_killed_run_takes_everything_along(folder: Path) -> None:
    add(folder, "time.sleep(600)")
    process = start(folder, "--local", "2", "program.py")
    report = first_line(process)
    process.kill()
    finish(process)
    wait_until("the end of the program", lambda: not alive(int(str(report["pid"]))))
    wait_until("the end of its embedded allocation", lambda: gone(report))


def test_lost_agents_end_the_run_with_a_sentence(folder: Path) -> None:
    add(folder, "time.sleep(600)")
    process = start(folder, "--local", "1", "program.py")
    report = first_line(process)
    directory = Path(str(report["directory"]))

    def owners() -> list[object]:
        status = query_status(directory, 60.0)
        assert status is not None
        return [run["pid"] for run in status["runs"]]

    wait_until("the run at the head", lambda: process.pid in owners())
    for pid in cookie_holders(directory):
        if "monarch_hpc.agent" in read_command(pid):
            os.kill(pid, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 72
    assert "lost its head while the program ran" in err
    wait_until("the end of what the killed agents had started", lambda: gone(report))


def test_no_file_of_the_users_stands_in_for_a_module(folder: Path) -> None:
    for name in ("random.py", "socket.py"):
        (folder / name).write_text("raise SystemExit('the wrong module')\n")
    (folder / "sub").mkdir()
    (folder / "program.py").rename(folder / "sub" / "program.py")
    process = start(folder, "--local", "1", "sub/program.py", before=["-P"])
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    until_gone(json.loads(out))


@pytest.fixture
def allocation(folder: Path) -> Iterator[Path]:
    """An allocation that outlives runs, registered under the name ``dev``; yields its directory."""
    with open_local(2, load().config, folder / "allocation") as directory:
        registry = Registry(folder / "state" / "monarch-hpc")
        record = AllocationRecord("ab" * 16, "dev", directory, "2", current_owner(), time.time())
        registry.create(record)
        registry.set_job(record, 7, time.time())
        yield directory


def runs(directory: Path) -> list[object]:
    status = query_status(directory, 60.0)
    assert status is not None
    return [run["title"] for run in status["runs"]]


def test_runs_come_and_go_on_one_allocation(folder: Path, allocation: Path) -> None:
    add(folder, "sys.exit(int(sys.argv[1]))")
    for code in (0, 5):
        status, out, err = finish(start(folder, "program.py", str(code)))
        assert (status, err) == (code, "")
        assert json.loads(out)["directory"] == str(allocation)
    assert runs(allocation) == []


def test_two_runs_at_once_and_one_is_stopped(folder: Path, allocation: Path) -> None:
    add(folder, "time.sleep(600)")
    one, two = (start(folder, "-a", "dev", "program.py", word) for word in ("one", "two"))
    first, second = first_line(one), first_line(two)
    assert first["run"] != second["run"]
    wait_until("two runs", lambda: len(runs(allocation)) == 2)
    one.send_signal(signal.SIGTERM)
    code, _, err = finish(one)
    assert (code, err.count("allocation 'dev' is still there: ")) == (143, 1)
    assert [str(title).split()[-1] for title in runs(allocation)] == ["two"]
    two.kill()
    finish(two)
    wait_until("the end of the second", lambda: runs(allocation) == [] and not alive(int(str(second["pid"]))))


def test_versions_that_differ_stop_a_run_before_it_begins(folder: Path, allocation: Path) -> None:
    document = read_json(allocation / "ready.json")
    assert isinstance(document, dict)
    write_json(allocation / "ready.json", {**document, "python": "3.9.2"})
    status, out, err = finish(start(folder, "program.py"))
    assert (status, out) == (76, "")
    assert re.match(r"monarch-hpc: error: Python differs: 3\.\S+ \(.*\) here, 3\.9\.2 on local0 there; use one ", err)
