"""Jobs on this machine; and commands, forwarded ports and shells on their hosts."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.system.support.programs import PATIENCE_S, Programs, programs

__all__ = ["programs"]

HEAD = """
import os, socket, sys, threading
from monarch_hpc.actor import Actor, Point, context, endpoint, this_proc
from monarch_hpc.job import LocalJob, PortForwarder, ProcessJob, exec_command, hosts_from_config, job_load, shell

class Where(Actor):
    @endpoint
    def where(self): return context().proc.host, os.environ.get("FLAVOUR")
"""

JOB = (
    HEAD
    + """
job = ProcessJob({"trainers": 1, "loaders": 2}, env={"FLAVOUR": "mint"})
state = job.state()
print("loaders", sorted(state.loaders.spawn_procs().spawn("where", Where).where.call().get().values()))
print("trainers", state.trainers.sizes, job.state() is not None)
print("id", job.apply_id)
"""
)


def workers_of(programs: Programs) -> list[str]:
    """The worker processes of jobs that this test's programs made."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                programs.mark in (path / "environ").read_bytes()
                and b"monarch_hpc.job.worker" in (path / "cmdline").read_bytes()
            ):
                found.append(path.name)
        except OSError:
            continue
    return found


def until_no_workers(programs: Programs) -> None:
    wait_until("no worker", lambda: workers_of(programs), PATIENCE_S, accept=lambda left: not left)


def test_a_process_job_outlives_its_program_until_it_is_killed(programs: Programs) -> None:
    first = programs.run(JOB)
    assert "loaders [('local1', 'mint'), ('local2', 'mint')]" in first and "trainers {'hosts': 1} True" in first
    assert len(workers_of(programs)) == 3
    second = programs.run(JOB)
    assert first.splitlines()[-1] == second.splitlines()[-1]
    changed = JOB.replace('"loaders": 2', '"loaders": 3')
    output = programs.run(changed, code=1)
    assert (
        "lives and differs: meshes is {'trainers': 1, 'loaders': 2}, wanted is {'trainers': 1, 'loaders': 3}" in output
    )
    assert len(workers_of(programs)) == 3
    programs.run(HEAD + "job_load().kill()")
    until_no_workers(programs)
    assert "('local3', 'mint')" in programs.run(changed + "\njob.kill()")
    until_no_workers(programs)
    programs.until_left()


def test_a_job_that_is_saved_nowhere_ends_with_its_program(programs: Programs) -> None:
    output = programs.run(HEAD + 'print(hosts_from_config("grid").sizes)')
    assert "{'hosts': 2}" in output
    until_no_workers(programs)
    assert not (programs.folder / ".monarch").exists()


def test_a_worker_of_a_job_that_has_died_is_no_job(programs: Programs) -> None:
    program = HEAD + 'job = ProcessJob({"a": 1})\njob.state()\nprint("id", job.apply_id)'
    first = programs.run(program)
    os.kill(int(workers_of(programs)[0]), 9)
    until_no_workers(programs)
    second = programs.run(program + "\njob.kill()")
    assert "id" in second and first.splitlines()[-1] != second.splitlines()[-1]


LOCAL = (
    HEAD
    + """
state = LocalJob(hosts=("trainers", "loaders")).state()
print(state.trainers.sizes, len(state.loaders))
os.makedirs("work")
code = exec_command(
    state.trainers,
    ["sh", "-c", "echo to $MONARCH_RANK_gpus of $MONARCH_SIZE_gpus $FLAVOUR; pwd; exit $((MONARCH_RANK_gpus + 3))"],
    env={"FLAVOUR": "mint"}, workdir=os.path.abspath("work"), per_host={"gpus": 2},
)
print("code", code.get(timeout=60))
open("script.py", "w").write("import sys; print('script', sys.argv[1:]); print('woe', file=sys.stderr); sys.exit(5)")
print("code", exec_command(state.loaders, ["script.py", "a b"], output_dir=os.path.abspath("out/$SUBDIR")).get())
print("code", exec_command(state.loaders, ["sh", "-c", "kill -9 $$"]).get())
for wrong in (dict(cmd=[]), dict(cmd=["true"], rank=0, point={})):
    try:
        exec_command(state.loaders, **wrong)
    except ValueError as error:
        print("refused:", error)
try:
    exec_command(state.loaders, ["no-such-command"], workdir=None).get()
except Exception as error:
    print(type(error).__name__, error)
"""
)


def test_commands_run_on_hosts_with_their_place_and_give_their_code(programs: Programs) -> None:
    output = programs.run(LOCAL)
    assert (
        "to 0 of 2 mint" in output and "to 1 of 2 mint" in output and output.count(str(programs.folder / "work")) == 2
    )
    assert [line for line in output.splitlines() if line.startswith("code")] == ["code 4", "code 5", "code 137"]
    assert (programs.folder / "out" / "stdout.txt").read_text() == "script ['a b']\n"
    assert (programs.folder / "out" / "stderr.txt").read_text() == "woe\n"
    assert output.count("refused:") == 2
    programs.until_left()


FORWARD = (
    HEAD
    + """
state = LocalJob().state()
service = socket.create_server(("127.0.0.1", 0))

def serve():
    while True:
        peer, _ = service.accept()
        threading.Thread(target=echo, args=(peer,), daemon=True).start()

def echo(peer):
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)

threading.Thread(target=serve, daemon=True).start()
port = 10000 + os.getpid() % 22000  # below those that the kernel chooses for others
far = state.hosts.spawn_procs()
forwarder = this_proc().spawn("forwarder", PortForwarder)
served = service.getsockname()[1]
forwarder.forward.call_one(far, lambda point: served, this_proc(), f"127.0.0.1:{port}").get()

def carry(data):
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR))).start()
        got = bytearray()
        while more := sock.recv(1 << 20):
            got += more
        return bytes(got) == data

big = os.urandom(20 << 20)
print("carried", carry(b"x"), carry(big), carry(b""))
results = []
threads = [threading.Thread(target=lambda: results.append(carry(big[:1 << 20]))) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("eight", results == [True] * 8)

# One that is open when the forwarder stops is closed.
waiting = socket.create_connection(("127.0.0.1", port), 60)
waiting.sendall(b"hello")
print("open", waiting.recv(5))
forwarder.stop().get()
# Whoever has stopped it may listen there at once.
socket.create_server(("127.0.0.1", port)).close()
print("nobody listens")
try:
    print("then", waiting.recv(1))
except ConnectionResetError:
    print("then b''")

again = this_proc().spawn("forwarder", PortForwarder)
for arguments in (
    (far, 0, this_proc(), f"127.0.0.1:{port}"),
    (far, 1, this_proc(), "nowhere"),
    (state.hosts.spawn_procs({"gpus": 2}), 1, this_proc(), f"127.0.0.1:{port}"),
):
    try:
        again.forward.call_one(*arguments).get()
    except ValueError as error:
        print("refused:", error)

# Nobody serves there: whoever connects sees that it is closed.
again.forward.call_one(far, 9, this_proc(), f"127.0.0.1:{port}").get()
with socket.create_connection(("127.0.0.1", port), 60) as sock:
    print("no service", sock.recv(1))
"""
)


def test_connections_are_carried_to_a_service_on_a_host(programs: Programs) -> None:
    output = programs.run(FORWARD)
    assert "carried True True True" in output and "eight True" in output
    assert "open b'hello'" in output and "then b''" in output and "nobody listens" in output
    assert output.count("refused:") == 3 and "no service b''" in output


SHELL = (
    HEAD
    + """
import faulthandler, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of all that a shell starts in the background
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as of all that nohup starts
state = LocalJob().state()
code = shell(state.hosts, env={"FLAVOUR": "mint", "SHELL": "/bin/sh", "PS1": "ready "}, workdir="/")
print("code", code, flush=True)
try:
    shell(state.hosts.spawn_procs)
except Exception:
    pass
"""
)


class Terminal:
    """A program on its own pseudoterminal."""

    def __init__(self, programs: Programs, text: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(40, 100)
        path = programs.folder / "terminal.py"
        path.write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            cwd=programs.folder,
            env=programs.environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.output = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, words: str) -> None:
        """Read the output up to *words*, and discard it."""

        def look() -> str:
            try:
                self.output += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                pass  # no new output, or the program has ended
            return self.output

        wait_until(words, look, PATIENCE_S, accept=lambda output: words in output)
        self.output = self.output.partition(words)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.parametrize("ending", ["exit 7\n", "\x04"], ids=["exit", "end of input"])
def test_a_shell_on_a_host_is_used_like_one_here(programs: Programs, ending: str) -> None:
    terminal = Terminal(programs, SHELL)
    try:
        terminal.until("ready ")
        terminal.type("echo fla''vour $FLAVOUR; pwd; stty size\n")
        terminal.until("flavour mint")
        terminal.until("/\r\n")
        terminal.until("40 100")
        terminal.resize(50, 120)
        os.kill(terminal.process.pid, signal.SIGWINCH)  # the kernel does not: it is not the controlling terminal
        terminal.type("until [ \"$(stty size)\" = '50 120' ]; do :; done; echo re''sized\n")
        terminal.until("resized")
        # Ctrl-C goes to the command that runs there. The sleeper itself prints that it sleeps: bash gives the terminal
        # to a command after the fork, and an earlier Ctrl-C ends neither.
        terminal.type("sh -c \"echo asl''eep; exec sleep 600\"\n")
        terminal.until("asleep")
        terminal.type("\x03")
        terminal.until("ready ")
        terminal.type("true; " + ending if ending.startswith("exit") else ending)
        terminal.until("code 7" if ending.startswith("exit") else "code ")
        assert terminal.process.wait(PATIENCE_S) == 0
    finally:
        terminal.close()
    programs.until_left()


def test_the_end_of_input_hangs_up_on_a_command_that_runs(programs: Programs) -> None:
    program = programs.start(SHELL, stdin=subprocess.PIPE)
    assert program.stdin is not None
    program.stdin.write("sh -c \"echo asl''eep; exec sleep 600\"\n")
    program.stdin.flush()
    programs.until(program, "asleep")
    program.stdin.close()
    programs.until(program, "code ")
    assert program.wait(PATIENCE_S) == 0


def test_a_shell_ends_although_a_job_keeps_its_terminal(programs: Programs) -> None:
    program = programs.start(SHELL, stdin=subprocess.PIPE)
    assert program.stdin is not None
    program.stdin.write("(trap '' HUP; echo be''gun; while :; do echo more; sleep 0.01; done) &\n")
    program.stdin.flush()
    programs.until(program, "begun")
    program.stdin.write("exit 3\n")
    program.stdin.flush()
    programs.until(program, "code 3")
    assert program.wait(PATIENCE_S) == 0
    programs.until_left()


def test_a_shell_needs_one_host(programs: Programs) -> None:
    output = programs.run(HEAD + 'shell(ProcessJob({"a": 2}).state(cached_path=None).a)', code=1)
    assert "a shell runs on one host, the mesh has 2" in output
    until_no_workers(programs)


SERVED = (
    HEAD
    + """
from monarch_hpc.job.spmd import job_load, serve
if "again" not in sys.argv:
    job = serve(["torchrun", "--nproc-per-node=2", "train.py", "--lr", "3"], scheduler="local_cwd")
    job.dump("job.pkl")
job_load("job.pkl").run_spmd()
"""
)
TRAINING = """
import os, sys
with open("rank" + os.environ["RANK"], "a") as file:
    print(os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], *sys.argv, file=file)
"""


def test_a_command_of_torchrun_is_run_again_by_the_next_program(programs: Programs) -> None:
    (programs.folder / "train.py").write_text(TRAINING)
    programs.run(SERVED)
    programs.run(SERVED, "again")
    for rank in (0, 1):
        assert (programs.folder / f"rank{rank}").read_text() == f"2 {rank} train.py --lr 3\n" * 2


LEAVING = (
    HEAD
    + """
import monarch_hpc
from monarch_hpc.job.spmd import serve
for words in (["none"], ["0"], ["5"], ["in words"], ["none"]):
    job = serve(["torchrun", "--nproc-per-node=2", "leave.py", *words], scheduler="local_cwd")
    try:
        print(words[0], job.run_spmd(), flush=True)
    except monarch_hpc.MeshError as error:
        print(words[0], str(error).partition("ScriptFailed: ")[2], flush=True)
print("on it goes")
"""
)
LEAVE = """
import os, sys
ends = {"none": None, "0": 0, "5": 5, "in words": "no data"}[sys.argv[1]]
sys.exit(ends if os.environ["RANK"] == "1" else None)
"""


def test_the_scripts_of_a_command_of_torchrun_may_exit(programs: Programs) -> None:
    """`sys.exit(main())` is the last line of many of them, and ends the script, not the actor that runs it."""
    (programs.folder / "leave.py").write_text(LEAVE)
    assert programs.run(LEAVING).splitlines() == [
        "none None",
        "0 None",
        "5 leave.py, rank 1 on local0, failed: exit code 5",
        "in words leave.py, rank 1 on local0, failed: exit code 1: no data",
        "none None",
        "on it goes",
    ]
