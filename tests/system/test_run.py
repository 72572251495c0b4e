"""`monarch-hpc run` as users start it: codes, streams and signals pass, and nothing stays behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.agent_client import alive, cookie_holders, eventually

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
print(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "directory": os.environ["MONARCH_HPC_DIRECTORY"],
                  "run": os.environ["MONARCH_HPC_RUN"], "argv": sys.argv[1:]}), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory with a program in it, and the check that nothing of its allocation is left."""
    (tmp_path / "program.py").write_text(SCRIPT)
    yield tmp_path


def start(folder: Path, *words: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "monarch_hpc.cli", "run", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.getcwd()},
        stdin=options.pop("stdin", subprocess.DEVNULL),  # type: ignore[call-overload]
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process: subprocess.Popen[bytes], feed: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(feed, timeout=60)
    return process.returncode, out.decode(), err.decode()


def add(folder: Path, code: str) -> None:
    (folder / "program.py").write_text(SCRIPT + code)


def first_line(process: subprocess.Popen[bytes]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read().decode()
    found: dict[str, object] = json.loads(line)
    return found


def gone(said: dict[str, object]) -> bool:
    directory = Path(str(said["directory"]))
    return not directory.exists() and not cookie_holders(directory)


def test_arguments_output_and_exit_code_pass(folder: Path) -> None:
    add(folder, "print(sys.stdin.read().upper(), file=sys.stderr); sys.exit(3)")
    words = ["--local", "1", "program.py", "-x", "--local", "a b", "--"]
    code, out, err = finish(start(folder, *words, stdin=subprocess.PIPE), b"input")
    assert (code, err) == (3, "INPUT\n")
    said = json.loads(out)
    assert said["argv"] == ["-x", "--local", "a b", "--"]
    assert gone(said)


def test_without_an_allocation_it_says_where_it_runs(folder: Path) -> None:
    code, out, err = finish(start(folder, "program.py"))
    assert (code, err) == (0, "no allocation: running on one embedded host of this machine\n")
    assert gone(json.loads(out))


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


def test_a_signal_reaches_the_program_once_and_the_run_waits_for_it(folder: Path) -> None:
    add(
        folder,
        "got = []\nfor n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, lambda n, _: got.append(n))\n"
        "print('armed', flush=True)\nwhile not got: time.sleep(0.01)\ntime.sleep(0.3); print(got, flush=True); sys.exit(7)",
    )
    process = start(folder, "--local", "1", "program.py")
    said = first_line(process)
    assert process.stdout is not None and process.stdout.readline() == b"armed\n"
    process.send_signal(signal.SIGTERM)
    code, out, _ = finish(process)
    assert (code, out) == (7, f"[{signal.SIGTERM:d}]\n")
    assert gone(said)


def test_a_program_that_does_not_end_is_killed_after_the_grace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HPC_RUN__STOP_GRACE_S", "0.3")
    add(folder, "signal.signal(signal.SIGINT, signal.SIG_IGN); print('armed', flush=True); time.sleep(600)")
    process = start(folder, "--local", "1", "program.py")
    said = first_line(process)
    assert process.stdout is not None and process.stdout.readline() == b"armed\n"
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 137
    assert gone(said)


def test_ctrl_c_at_a_terminal_reaches_the_program_once(folder: Path) -> None:
    add(
        folder,
        "got = []\nsignal.signal(signal.SIGINT, lambda n, _: got.append(n))\nprint('armed', flush=True)\n"
        "while not got: time.sleep(0.01)\ntime.sleep(0.3); print(got, flush=True)",
    )
    ours, theirs = pty.openpty()
    script = f"exec {sys.executable} -m monarch_hpc.cli run --local 1 program.py"
    process = subprocess.Popen(
        # A session whose terminal is the pty, with the run as its foreground group.
        [sys.executable, "-c", "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('sh', ['sh', '-c', sys.argv[1]])", script],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.getcwd()},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(theirs)
    said = first_line(process)
    assert process.stdout is not None and process.stdout.readline() == b"armed\n"
    os.write(ours, b"\x03")
    code, out, err = finish(process)
    os.close(ours)
    assert (code, out, err) == (0, "[2]\n", "")
    assert gone(said)


def test_a_killed_run_takes_everything_along(folder: Path) -> None:
    add(folder, "time.sleep(600)")
    process = start(folder, "--local", "2", "program.py")
    said = first_line(process)
    process.kill()
    finish(process)
    eventually(lambda: not alive(int(str(said["pid"]))), "the end of the program")
    eventually(lambda: gone(said), "the end of its embedded allocation")


def test_lost_agents_end_the_run_with_a_sentence(folder: Path) -> None:
    add(folder, "time.sleep(600)")
    process = start(folder, "--local", "1", "program.py")
    said = first_line(process)
    directory = str(said["directory"]).encode()
    for pid in cookie_holders(Path(str(said["directory"]))):
        if b"monarch_hpc.agent\0" in (command := Path(f"/proc/{pid}/cmdline").read_bytes()) and directory in command:
            os.kill(pid, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 72
    assert "lost its head while the program ran" in err
    assert gone(said)


def test_no_file_of_the_users_stands_in_for_a_module(folder: Path) -> None:
    for name in ("random.py", "socket.py"):
        (folder / name).write_text("raise SystemExit('the wrong module')\n")
    (folder / "sub").mkdir()
    (folder / "program.py").rename(folder / "sub" / "program.py")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "monarch_hpc.cli", "run", "--local", "1", "sub/program.py"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    assert gone(json.loads(out))


