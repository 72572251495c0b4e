"""Workers started by hand: programs attach to them one after the other, and strangers cannot."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, HELLO_BYTES
from tests.system.support.programs import PATIENCE_S, Programs, programs

__all__ = ["programs"]

WORKER = """
import sys
from monarch_hpc.actor import run_worker_loop_forever
key = dict(private_key=sys.argv[2]) if len(sys.argv) > 2 else {}
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections", **key)
"""

PROGRAM = """
import sys, time
from monarch_hpc.actor import Actor, attach_to_workers, context, endpoint

class Where(Actor):
    @endpoint
    def where(self): return context().proc.host, context().proc.rank
    @endpoint
    def sleep(self): time.sleep(600)

what, *workers = sys.argv[1:]
timeout = float(what) if what[0].isdigit() else None
hosts = attach_to_workers(ca="trust_all_connections", workers=workers, timeout=timeout)
actors = hosts.spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
print(hosts.sizes, sorted(actors.where.call().get().values()), flush=True)
if what == "sleep":
    print("sleeping", flush=True)
    actors.sleep.call().get()
"""


def start_worker(programs: Programs, address: str, *more: str) -> tuple[subprocess.Popen[str], str]:
    """Start a worker; return it and its address."""
    worker = programs.start(WORKER, address, *more)
    output = programs.until(worker, "worker waits")
    match = re.search(r"\((tcp://[^)]*)\)", output)
    assert match is not None, output
    return worker, match[1]


def test_programs_use_workers_one_after_the_other_and_leave_nothing(programs: Programs) -> None:
    file = f"ipc://{programs.folder}/w0"
    start_worker(programs, file)
    _, by_tcp = start_worker(programs, "service<8>@tcp://localhost:0@tcp://127.0.0.1:0")
    for _ in range(2):
        output = programs.run(PROGRAM, "plain", file, by_tcp)
        assert "{'hosts': 2} [('local0', 0), ('local0', 1), ('local1', 2), ('local1', 3)]" in output
        wait_until("no process of the program", programs.procs, PATIENCE_S, accept=lambda left: not left)


def test_a_worker_whose_program_is_killed_ends_its_work_and_waits_for_the_next(programs: Programs) -> None:
    worker, _ = start_worker(programs, "ipc://w0")
    program = programs.start(PROGRAM, "sleep", "ipc://w0")
    programs.until(program, "sleeping")
    assert len(programs.procs()) >= 2
    os.kill(program.pid, signal.SIGKILL)
    wait_until("no process of the program", programs.procs, PATIENCE_S, accept=lambda left: not left)
    assert "{'hosts': 1}" in programs.run(PROGRAM, "plain", "ipc://w0")
    assert worker.poll() is None


def test_a_second_program_waits_for_the_first_and_is_told_of_it(programs: Programs) -> None:
    start_worker(programs, "ipc://w0")
    first = programs.start(PROGRAM, "sleep", "ipc://w0")
    programs.until(first, "sleeping")
    output = programs.run(PROGRAM, "5", "ipc://w0", code=1)
    assert "worker ipc://w0 is not there after 5 s: it works for" in output and "program1.py" in output
    second = programs.start(PROGRAM, "plain", "ipc://w0")
    first.terminate()
    assert "{'hosts': 1}" in second.communicate(timeout=PATIENCE_S)[0]


def test_a_worker_that_comes_late_is_waited_for_and_one_that_does_not_is_named(programs: Programs) -> None:
    start_worker(programs, "ipc://w0")
    # The first one of those that are not there is named: on a busy machine, the other may be late, too.
    output = programs.run(PROGRAM, "3", "ipc://w1", "ipc://w0", code=1)
    assert "worker ipc://w1 is not there after 3 s: there is no file" in output
    assert "run_worker_loop_forever(address=...)" in output and "agent.attach_s" in output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    output = programs.run(PROGRAM, "3", f"tcp://localhost:{port}", "ipc://w0", code=1)
    assert f"worker tcp://localhost:{port} is not there after 3 s: Connection refused" in output
    late = programs.start(PROGRAM, "plain", "ipc://w0", "ipc://w1")
    start_worker(programs, "ipc://w1")
    assert "{'hosts': 2}" in late.communicate(timeout=PATIENCE_S)[0]


def test_a_stranger_is_refused_and_disturbs_nobody(programs: Programs, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    for path in (key, other):
        path.touch(0o600)
        path.write_bytes(os.urandom(32))
    _, address = start_worker(programs, "tcp://127.0.0.1:0", str(key))
    with_key = PROGRAM.replace("what, *workers", "key = sys.argv.pop()\nwhat, *workers")
    with_key = with_key.replace('ca="trust_all_connections"', "private_key=key")
    # Another key, or the default key; then bytes that are not a handshake.
    for output in (
        programs.run(with_key, "5", address, str(other), code=1),
        programs.run(PROGRAM, "5", address, code=1),
    ):
        assert "AuthenticationError" in output and "both sides need the same private_key" in output
    host, _, port = address.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as stranger:
        stranger.sendall(b'{"kind": "engage"}' * 100)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    programs.until_left()
    assert "{'hosts': 1}" in programs.run(with_key, "plain", address, str(key))


def test_an_impostor_in_a_workers_place_does_not_end_the_program(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = f"tcp://127.0.0.1:{impostor.getsockname()[1]}"
        program = programs.start(PROGRAM, "plain", address)
        for answer in (b"", os.urandom(ANSWER_BYTES)):
            sock, _ = impostor.accept()
            with sock:
                sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
                sock.sendall(answer)
    start_worker(programs, address)
    output = program.communicate(timeout=PATIENCE_S)[0]
    assert program.returncode == 0 and "{'hosts': 1}" in output
    assert output.count("for one with the same private_key") == 1, "it is said, and once"


def test_a_worker_that_is_told_to_end_takes_its_work_with_it(programs: Programs) -> None:
    file = programs.folder / "w0"
    worker, _ = start_worker(programs, f"ipc://{file}")
    program = programs.start(PROGRAM, "sleep", f"ipc://{file}")
    programs.until(program, "sleeping")
    worker.terminate()
    assert worker.wait(PATIENCE_S) == 128 + signal.SIGTERM
    programs.until_left()
    assert not file.exists()
    assert program.wait(PATIENCE_S) == 1


def test_an_address_that_is_taken_or_no_address_is_refused(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        output = programs.run(WORKER, address, code=1)
    assert f"lost {address}: a worker cannot listen there" in output and "already in use" in output
    assert "tcp:// is sealed already" in programs.run(WORKER, "tls://127.0.0.1:1", code=1)


TWICE = """
import sys
from monarch_hpc import AllocationError
from monarch_hpc.actor import attach_to_workers, hosts, shutdown_context
local = hosts()
first = attach_to_workers(ca="trust_all_connections", workers=sys.argv[1:2])
both = [local.spawn_procs(), first.spawn_procs()]
assert all(procs.initialized.get(30) for procs in both)
second = attach_to_workers(workers=sys.argv[2:])
assert second.spawn_procs().initialized.get(30)
print(local.sizes, first.sizes, second.sizes)
first.shutdown()
assert both[0].to_table()
try:
    first.spawn_procs()
except RuntimeError as error:
    print("refused:", error, flush=True)
shutdown_context().get()
print("again", attach_to_workers(workers=sys.argv[2:]).sizes)
try:
    attach_to_workers(workers=["ipc://a", "ipc://a"])
except AllocationError as error:
    print("refused:", error)
try:
    attach_to_workers(ca=b"a certificate", workers=["ipc://a"])
except Exception as error:
    print("no ca:", error)
"""


def test_a_program_has_local_hosts_and_workers_attached_later(programs: Programs) -> None:
    worker, _ = start_worker(programs, "ipc://w0")
    start_worker(programs, "ipc://w1")
    output = programs.run(TWICE, "ipc://w0", "ipc://w1")
    assert worker.wait(PATIENCE_S) == 0  # its hosts were shut down; the other one serves on
    assert "refused: these hosts were shut down" in output and "named twice" in output
    assert (
        "{'hosts': 1} {'hosts': 1} {'hosts': 1}" in output
        and "again {'hosts': 1}" in output
        and "no ca: ca: there are no certificates here" in output
    )


ON_A_THREAD = """
from monarch_hpc.actor import Future, attach_to_workers, returns_future, start_worker_loop_forever

@returns_future
async def address():
    return "ipc://mine"

ends = start_worker_loop_forever(address="ipc://mine")
hosts = attach_to_workers(workers=[address()])
print(hosts.sizes, isinstance(ends, Future) and not ends.done())
hosts.shutdown()
ends.get(timeout=60)
print("the worker has ended")
"""


def test_a_worker_runs_on_a_thread_until_its_hosts_are_shut_down(programs: Programs) -> None:
    output = programs.run(ON_A_THREAD)
    assert "{'hosts': 1} True" in output and "the worker has ended" in output
    assert not list((programs.folder / "state" / "monarch-hpc" / "workers").iterdir())


def test_hosts_that_are_shut_down_are_over(programs: Programs) -> None:
    worker, _ = start_worker(programs, "ipc://w0")
    text = "from monarch_hpc.actor import attach_to_workers\nattach_to_workers(workers=['ipc://w0']).shutdown()"
    programs.run(text)
    assert worker.wait(PATIENCE_S) == 0


IN_PARTS = """
import sys
from monarch_hpc.actor import Actor, attach_to_workers, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, value): return value

hosts = attach_to_workers(workers=sys.argv[1:])
echo = hosts.slice(hosts=0).spawn_procs().spawn("echo", Echo)
assert hosts.slice(hosts=slice(1, 3)).spawn_procs().initialized.get(30)
hosts.slice(hosts=1).shutdown()
print("one is given back", flush=True)
sys.stdin.readline()
print(echo.echo.call_one("the others go on").get(30), flush=True)
assert hosts.slice(hosts=2).spawn_procs().spawn("echo", Echo).echo.call_one(2).get(30) == 2
hosts.slice(hosts=0).shutdown()
hosts.slice(hosts=2).shutdown()
"""


def test_hosts_are_given_back_one_after_the_other(programs: Programs) -> None:
    workers = [start_worker(programs, f"ipc://w{rank}")[0] for rank in range(3)]
    program = programs.start(IN_PARTS, *(f"ipc://w{rank}" for rank in range(3)), stdin=subprocess.PIPE)
    programs.until(program, "one is given back")
    assert workers[1].wait(PATIENCE_S) == 0
    assert workers[0].poll() is None and workers[2].poll() is None
    assert program.communicate("\n", timeout=PATIENCE_S)[0] == "the others go on\n"
    assert program.returncode == 0
    assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0, 0]


@pytest.mark.parametrize("address", ["tcp://no-such-host.invalid:1", "ipc://", "nonsense"])
def test_a_wrong_address_is_named_at_once(programs: Programs, address: str) -> None:
    assert f"worker address '{address}'" in programs.run(PROGRAM, "plain", address, code=1)


INHERITED = """
import os, socket, sys
from monarch_hpc.actor import run_worker_loop_forever
sock = socket.create_server(("127.0.0.1", 0))
print("port", sock.getsockname()[1], flush=True)
run_worker_loop_forever(address=f"tcp://127.0.0.1:fd{sock.detach()}")
"""


def test_a_worker_listens_on_a_socket_that_it_inherited(programs: Programs) -> None:
    worker = programs.start(INHERITED)
    port = programs.until(worker, "port ").split()[-1]
    programs.until(worker, "worker waits")
    assert "[('local0', 0), ('local0', 1)]" in programs.run(PROGRAM, "60", f"tcp://127.0.0.1:{port}")
    output = programs.run(PROGRAM, "60", "tcp://127.0.0.1:fd3", code=1)
    assert "give the port that its socket is bound to" in output
    output = programs.run(
        "from monarch_hpc.actor import *\nrun_worker_loop_forever(address='tcp://127.0.0.1:fd0')", code=1
    )
    assert "worker address 'tcp://127.0.0.1:fd0': descriptor 0" in output
