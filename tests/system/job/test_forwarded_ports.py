"""A forwarded port can be reached by this user's processes, some dozen at a time, whatever others do."""

from __future__ import annotations

import subprocess
import sys

from tests.system.support.colleague import GID, UID, needs_root
from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

PROGRAM = """
import os, resource, socket, sys, threading, time
from monarch_hpc.actor import this_proc
from monarch_hpc.job import LocalJob, PortForwarder
from monarch_hpc.testing import wait_until

service = socket.create_server(("127.0.0.1", 0), backlog=200)

def serve():
    while True:
        peer, _ = service.accept()
        threading.Thread(target=echo, args=(peer,), daemon=True).start()

def echo(peer):
    peer.sendall(b"secret")
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.close()

threading.Thread(target=serve, daemon=True).start()
port = 10000 + os.getpid() % 22000  # below those that the kernel chooses for others
far = LocalJob().state().hosts.spawn_procs()
forwarder = this_proc().spawn("forwarder", PortForwarder)
path = os.path.abspath("door")
os.umask(0)
for address in (f"127.0.0.1:{port}", f"unix:{path}"):
    forwarder.forward.call_one(far, service.getsockname()[1], this_proc(), address).get()

def threads():
    return sum(thread.name == "monarch-forward" for thread in threading.enumerate())

def ask(sock=None):
    with sock or socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.settimeout(60)
        sock.sendall(b"x")
        return sock.recv(6)  # what comes back of its own may come with it

"""

STRANGERS = (
    PROGRAM
    + """
print("own", ask())
print("ready", port, flush=True)
peak = 0
over = threading.Event()
def watch():
    global peak
    while not over.wait(0.01):
        peak = max(peak, threads())
threading.Thread(target=watch).start()
input()
print("after", ask(), "peak", peak)
over.set()
"""
)

STRANGER = """
import os, resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
port, number, uid, gid = map(int, sys.argv[1:])
# Only now: another user may not be able to start this interpreter.
os.setgroups([])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
got = held = 0
socks = []
for _ in range(number):
    sock = socket.socket()
    sock.settimeout(60)
    try:
        sock.connect(("127.0.0.1", port))
        socks.append(sock)
    except OSError:
        sock.close()
for sock in socks:
    try:
        got += len(sock.recv(100))
    except OSError:
        pass
    sock.close()
print(len(socks), got)
"""

MANY = 2000


@needs_root
def test_thousands_of_connections_of_another_user_reach_nothing(programs: Programs) -> None:
    program = programs.start(STRANGERS, stdin=subprocess.PIPE)
    port = programs.until(program, "ready ").split()[-1]
    stranger = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, port, str(MANY), str(UID), str(GID)],
        capture_output=True,
        text=True,
        check=True,
    )
    connected, got = map(int, stranger.stdout.split())
    assert connected > MANY // 2 and got == 0, stranger.stderr
    output = program.communicate("\n", 60)[0]
    assert program.returncode == 0 and "after b'secret'" in output, output
    assert int(output.split()[-1]) <= 10


BUSY = (
    PROGRAM
    + """
def opened():
    sock = socket.create_connection(("127.0.0.1", port), 60)
    sock.sendall(b"x")
    return sock

held = [opened() for _ in range(100)]
served = sum(sock.recv(1) == b"s" for sock in held[:64])
end_s = time.monotonic() + 20  # a thread that has opened a connection ends a moment later
while threads() > 2 * 64 + 2 and time.monotonic() < end_s:
    time.sleep(0.01)
print("served", served, "threads", threads() <= 2 * 64 + 2)
for sock in held[:64]:
    sock.close()
print("then", sum(sock.recv(1) == b"s" for sock in held[64:]))
for sock in held[64:]:
    sock.close()

# Without a descriptor left nobody can be accepted; afterwards everybody is.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
late = [socket.socket() for _ in range(20)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
spare = []
try:
    while True:
        spare.append(os.dup(0))
except OSError:
    pass
for sock in late:
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    sock.sendall(b"x")
for descriptor in spare:
    os.close(descriptor)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print("late", sum(sock.recv(1) == b"s" for sock in late))
for sock in late:
    sock.close()

door = socket.socket(socket.AF_UNIX)
door.connect(path)
print("door", ask(door)[:6], oct(os.stat(path).st_mode & 0o777))
forwarder.stop().get()
print("gone", wait_until("the socket is removed", lambda: not os.path.exists(path)))
"""
)


def test_own_connections_wait_for_their_turn_and_survive_a_lack_of_descriptors(programs: Programs) -> None:
    output = programs.run(BUSY)
    assert "served 64 threads True" in output and "then 36" in output and "late 20" in output
    assert "door b'secret' 0o600" in output and "gone True" in output


SHARED = (
    PROGRAM
    + """
forwarder.stop().get()
many = LocalJob().state().hosts.spawn_procs(per_host={"gpus": 2})
forwarder = this_proc().spawn("forwarder", PortForwarder)
forwarder.forward.call_one(many, service.getsockname()[1], many, f"127.0.0.1:{port}").get()
print("shared", ask())
forwarder.stop().get()

with socket.create_server(("127.0.0.1", 0)) as taken:
    addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{taken.getsockname()[1]}"]
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    try:
        forwarder.forward.call_one(many, service.getsockname()[1], many, lambda point: addresses[point.rank]).get()
    except Exception as error:
        print("refused", "in use" in str(error))
try:
    ask()
except ConnectionRefusedError:
    print("none listens")
"""
)


def test_procs_of_a_host_share_an_address_and_one_that_fails_closes_the_others(programs: Programs) -> None:
    output = programs.run(SHARED)
    assert "shared b'secret'" in output and "refused True" in output and "none listens" in output
