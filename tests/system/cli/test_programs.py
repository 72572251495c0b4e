"""Programs on the first host outlive the commands that started them, and are attached to, signalled and cancelled."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_hpc.agent.programs import launcher
from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.core.storage.files import read_json, write_json
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab.processes import read_command
from tests.system.support.agent_client import alive, cookie_holders
from tests.system.support.first_host import ENDING, PATIENCE_S, allocation, call, detach, finish, line, script, start

ARMED = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"


def test_streams_input_folder_and_exit_code_pass(home: Path) -> None:
    text = (
        "import os, sys\nprint(sys.stdin.read().upper()); print(os.getcwd(), file=sys.stderr)\n"
        "print(sys.argv[1:], os.environ['OF_USER'], os.environ.get('SSH_CLIENT'), 'SLURM_X' in os.environ)\n"
        "os.close(os.open('made', os.O_CREAT | os.O_WRONLY, 0o666)); sys.exit(3)"
    )
    words = ["run", "-a", "dev", "--on", "host0", script(home, text), "a b", "$(x)", "--detach"]
    (home / "made").unlink(missing_ok=True)
    umask = os.umask(0o027)
    try:
        process = start(home, *words, stdin=subprocess.PIPE, OF_USER="u v", SSH_CLIENT="here", SLURM_X="1")
        code, out, err = finish(process, b"input")
    finally:
        os.umask(umask)
    assert (code, out) == (3, "INPUT\n['a b', '$(x)', '--detach'] u v None False\n")
    first, second = err.splitlines()
    assert first.startswith("run ") and " on local0; it outlives this terminal: 'monarch-hpc attach " in first
    assert second == str(home)
    assert (home / "made").stat().st_mode & 0o777 == 0o640


def test_the_way_to_a_first_line_loads_little() -> None:
    """The launcher loads no enumerations, and a client none of the messages that agents and procs exchange."""
    argv = [
        sys.executable,
        "-P",
        "-I",
        "-S",
        "-X",
        "importtime",
        launcher.__file__,
        str(os.getpid()),
        "/",
        "18",
        "true",
    ]
    launched = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stderr
    assert "ctypes" in launched
    assert not [name for name in ("enum", "signal", "termios") if f" {name}\n" in launched]
    shown = "import sys, monarch_hpc.attach.program_client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()
    others = ("table", "scribe", "procs", "succession", "kept")
    assert not [name for name in others if f"monarch_hpc.wire.control.{name}" in loaded]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["sh", "-c", "kill -USR1 $$"], 128 + signal.SIGUSR1, ""),
        (["no-such-command"], 127, "command 'no-such-command' is not found on PATH"),
    ],
)
def test_ends_have_the_exit_codes_of_a_shell(home: Path, words: list[str], code: int, sentence: str) -> None:
    status, out, err = call(home, "run", "-a", "dev", "--on", "host0", "--", *words)
    assert (status, out) == (code, "")
    assert sentence in err


def test_a_limit_of_time_holds_without_a_client_and_is_told_to_later_ones(home: Path) -> None:
    program = script(home, ARMED)
    code, out, err = call(home, "run", "-a", "dev", "--timeout", "2s", "--detach", "--json", program)
    assert code == 0, err
    started = json.loads(out)
    assert (started["schema"], started["host"]) == (1, "local0")
    code, out, err = call(home, "attach", "--all", started["run"])
    assert code == 124, err
    wait_until("the end of the program", lambda: not alive(int(out)))
    (record,) = home.glob(f"**/runs/{started['run']}/exit.json")
    assert json.loads(record.read_text())["exit_code"] == 124
    assert "its limit of 2 s was over: signal 15 (SIGTERM)" in record.read_text()
    code, out, _ = call(home, "run", "-a", "dev", "--json", program)
    assert code == 64 and "--json goes with --detach" in json.loads(out)["error"]["message"]


def test_cancel_ends_a_program_with_all_it_has_started(home: Path) -> None:
    text = (
        "import os, signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True))\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(child.pid, flush=True)\n"
        "while True: time.sleep(600)"
    )
    run = detach(home, script(home, text))
    attached = start(home, "attach", run)
    child = int(line(attached))
    assert call(home, "cancel", run, "--signal", "USR1")[:2] == (0, f"sent SIGUSR1 to run {run}\n")
    assert line(attached) == "told\n"
    code, out, err = call(home, "cancel", run, "--grace", "0", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["ended"] == "signal 9 (SIGKILL)"
    assert finish(attached)[0] == 137
    wait_until("the end of its child", lambda: not alive(child))
    assert call(home, "cancel", run)[:2] == (0, f"run {run} has ended: signal 9 (SIGKILL)\n")
    for words in (["attach", "nothing"], ["cancel", "../.."]):
        code, _, err = call(home, *words)
        assert code == 72 and "there is no run" in err


def test_a_program_with_a_terminal_has_its_size_and_its_keys(home: Path) -> None:
    text = (
        "import os, sys\nprint(os.isatty(0), os.isatty(2), os.get_terminal_size(), flush=True)\n"
        "try:\n    print('read', input(), flush=True); input()\nexcept KeyboardInterrupt: print('interrupted')"
    )
    ours, theirs = pty.openpty()
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); termios.tcsetwinsize(0, (33, 99)); "
    words = ["-m", "monarch_hpc.cli", "run", "-a", "dev", "--on", "host0", script(home, text)]
    process = subprocess.Popen(
        [sys.executable, "-c", take + "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])", *words],
        cwd=home,
        env={**os.environ, "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": os.getcwd()},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""

    def until(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            seen += os.read(ours, 4096)

    until(b"True True os.terminal_size(columns=99, lines=33)\r\n")
    os.write(ours, b"keys\r")
    until(b"read keys\r\n")
    os.write(ours, b"\x03")
    until(b"interrupted\r\n")
    assert process.wait(PATIENCE_S) == 0
    os.close(ours)


def test_a_limit_on_cpu_time_sends_the_program_to_the_first_host(home: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (3600, resource.getrlimit(resource.RLIMIT_CPU)[1]))

    def run(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "monarch_hpc.cli", "run", "-a", "dev", *words, "--", "sh", "-c", "echo $PPID"],
            env={**os.environ, "XDG_STATE_HOME": str(home / "state")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            preexec_fn=limit,
            check=False,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode().replace(ENDING, "")

    code, _, err = run()
    assert code == 0
    assert "on local0 (this machine allows a process 1 h of CPU time, see '--on here'); it outlives" in err
    code, _, err = run("--on", "here")
    assert (code, err) == (0, "")


def test_a_killed_agent_takes_its_programs_along(tmp_path: Path) -> None:
    with allocation(tmp_path) as directory:
        words = ["run", "-a", "dev", "--on", "host0", script(tmp_path, ARMED)]
        client = start(tmp_path, *words, MONARCH_HPC_TRANSPORT__CUT_S="1")
        pid = int(line(client))
        for agent in cookie_holders(directory):
            if "monarch_hpc.agent" in read_command(agent):
                os.kill(agent, signal.SIGKILL)
        wait_until("the end of the program", lambda: not alive(pid))
        code, _, err = finish(client)
        assert code == 72 and "contact with its head was lost while run" in err


def test_a_release_ends_a_program_in_its_own_time_and_its_end_is_in_the_files(tmp_path: Path) -> None:
    with allocation(tmp_path) as directory:
        text = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + ARMED
        client = start(tmp_path, "run", "-a", "dev", "--on", "host0", script(tmp_path, text))
        assert int(line(client))
        assert shut_down(directory, 60.0) == {"local0": 0, "local1": 0}
        assert finish(client)[0] == 5


def test_files_of_a_program_are_private(home: Path) -> None:
    run = detach(home, "--", "echo", "x")
    assert call(home, "attach", run)[:2] == (0, "x\n")
    folder = home / "allocation" / "runs" / run
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        ["program.json", "exit.json", "program.0.log", "program.0.index"], 0o600
    )
    assert (folder / "program.0.log").read_text() == "x\n"
    record = read_json(folder / "program.json")
    assert isinstance(record, dict) and record["title"] == "echo x"


def test_logs_follow_a_program_and_its_procs_and_leave_it_alone(home: Path) -> None:
    text = (
        "import os, time\nimport monarch_hpc\nfrom monarch_hpc import Actor, current_rank, endpoint\n"
        "class Printer(Actor):\n    @endpoint\n    def say(self, word): print(word, current_rank().rank, flush=True)\n"
        "printers = monarch_hpc.hosts().spawn_procs(per_host={'gpus': 1}).spawn('printer', Printer)\n"
        "printers.say.call('proc').get(); print('early', flush=True)\n"
        "while not os.path.exists('on'): time.sleep(0.01)\n"
        "printers.say.call('late').get(); print('over', flush=True)\n"
    )
    (home / "on").unlink(missing_ok=True)
    run = detach(home, script(home, text))
    follower = start(home, "logs", "dev", "-f", "--run", run, "--grep", "early|late|over")
    one = start(home, "logs", "dev", "-f", "--run", run, "--rank", "1", "--node", "local1", "--since", "1h")
    assert line(follower) == "[program] early\n"
    assert line(one) == "[r01 local1] proc 1\n"
    one.send_signal(signal.SIGINT)
    code, out, err = finish(one)
    assert (code, out) == (0, "") and f"run {run} goes on: 'monarch-hpc attach {run}' shows it again" in err
    (home / "on").touch()
    code, out, _ = finish(follower)
    assert code == 0
    assert {"[r00 local0] late 0", "[r01 local1] late 1", "[program] over"} <= set(out.splitlines())


def test_a_script_attaches_and_does_so_again_after_it_was_killed(home: Path) -> None:
    text = (
        "import os, signal\nimport monarch_hpc\n"
        "assert monarch_hpc.attach('dev').sizes == monarch_hpc.hosts().sizes == {'hosts': 2}\n"
        "print(len(monarch_hpc.attach().spawn_procs()), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, script(home, text)],
            env={**os.environ, "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": os.getcwd()},
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, b"2\n", b"")


def test_another_architecture_is_refused_in_words(tmp_path: Path) -> None:
    with allocation(tmp_path) as directory:
        ready = read_json(directory / "ready.json")
        assert isinstance(ready, dict) and ready["machine"] == os.uname().machine
        write_json(directory / "ready.json", {**ready, "machine": "pdp11"})
        code, _, err = call(tmp_path, "run", "-a", "dev", "--", "true")
        assert code == 76
        assert f"the processor differs: {os.uname().machine} here, pdp11 on local0 there; attach from a machine" in err
