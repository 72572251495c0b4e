"""An attacker: another user of the same host and primary group, who tries the attacks of NEG-02 to NEG-08.

Run as a program, it reads public facts and recorded traffic from its input; becomes that user once it has loaded all
modules, since the interpreter may be in a private folder; attacks; and prints its loot.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, HELLO_BYTES, PROOF_BYTES, Dialing
from tests.guards.tree import ROOT

__all__ = ["Loot", "Told", "attack"]

PATIENCE_S = 60.0
_PTRACE_SEIZE = 0x4206
_PIDFD_GETFD = 438


@dataclass
class Told:
    """The attacker's knowledge.

    Attributes:
        uid, gid: ids of the attacker; the group is the victim's.
        addresses: addresses of the victim's processes.
        allocation: its id, visible in the list of processes.
        sessions: recorded sessions: all bytes that a true peer sent. Hexadecimal, as all bytes here.
        greetings: hellos of true peers that never arrived.
        pids: ids of the victim's processes.
        folders: likely folders of the victim's files.
        bombs: a folder in which the attacker's pickles would make files.
    """

    uid: int
    gid: int
    addresses: list[str]
    allocation: str
    sessions: list[str]
    greetings: list[str]
    pids: list[int]
    folders: list[str]
    bombs: str


@dataclass
class Loot:
    """The result of an attack.

    Attributes:
        sessions: number of connections made, by kind of attack.
        opened: those that sent more than the answer to a recorded hello, or were not closed.
        tried: attempts on processes and files.
        got: the attempts that were not denied.
    """

    sessions: dict[str, int] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    tried: int = 0
    got: list[str] = field(default_factory=list)


def attack(told: Told) -> Loot:
    """Run the attacker until it exits; the test must be root."""
    argv = [sys.executable, "-m", "tests.system.support.attacker"]
    done = subprocess.run(argv, input=json.dumps(asdict(told)), capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return Loot(**json.loads(done.stdout))


class _Bomb:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (f"{self.folder}/{os.urandom(4).hex()}", os.O_CREAT)


def _throws(told: Told) -> Iterator[tuple[str, bytes]]:
    """The messages to send, each on a separate connection."""
    sessions = [bytes.fromhex(text) for text in told.sessions]
    greetings = [bytes.fromhex(text) for text in told.greetings]
    after = HELLO_BYTES + PROOF_BYTES
    for session in sessions or greetings:
        bomb = pickle.dumps(_Bomb(told.bombs))
        yield "NEG-02 bomb", bomb * (HELLO_BYTES // len(bomb) + 2)
        yield "NEG-02 bomb", session[:HELLO_BYTES] + bomb * 3
        yield "NEG-02 bomb", session[:after] + len(bomb).to_bytes(4, "little") + bomb
        yield "NEG-03 replay", session
        yield "NEG-03 replay", session[:HELLO_BYTES] + random.choice(sessions or greetings)[HELLO_BYTES:]
        yield "NEG-03 replay", session[:after] + session[after:][::-1]
        yield "NEG-03 replay", session[: random.randrange(len(session))]
        for _ in range(20):
            bit = random.randrange(8 * len(session))
            forged = bytearray(session)
            forged[bit // 8] ^= 1 << bit % 8
            yield "NEG-03 flipped", bytes(forged)
    for greeting in greetings:
        proof = random.choice([b"", bytes(PROOF_BYTES), os.urandom(PROOF_BYTES), bytes(PROOF_BYTES - 1), greeting])
        yield "NEG-04 proof", greeting + proof
        yield "NEG-04 role", greeting[:6] + bytes([greeting[6] % 3 + 1]) + greeting[7:]
    for key, allocation in (
        (os.urandom(32), told.allocation),
        (bytes(32), told.allocation),
        (b"", new_allocation_id()),
    ):
        identity = Identity(allocation, random.choice(list(Role)), "bob", new_incarnation(), random.randrange(3))
        hello = Dialing(identity, key or os.urandom(32), 0, "there").hello
        yield "NEG-05 key", hello + os.urandom(PROOF_BYTES)
    for length in (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
        yield "NEG-07 length", length.to_bytes(8, "little") * 100
    for _ in range(20):
        yield "NEG-08 nonsense", os.urandom(random.randrange(1, 4096))


def _send(address: str, data: bytes, *, reflect: bool = False) -> tuple[int, bool]:
    """Send *data*; return how many bytes were received, and whether the connection was closed."""
    got = 0
    with socket.create_connection(parse_address(address), PATIENCE_S) as sock:
        try:
            sock.sendall(data)
            if not reflect:
                sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                got += len(part)
                if reflect:
                    sock.sendall(part)
        except TimeoutError:
            return got, False
        except OSError:  # a reset
            pass
    return got, True


def _network(told: Told, loot: Loot) -> None:
    for address in told.addresses:
        for kind, data in _throws(told):
            got, gone = _send(address, data)
            loot.sessions[kind] = loot.sessions.get(kind, 0) + 1
            if got > ANSWER_BYTES or not gone:
                loot.opened.append(f"{kind} at {address}: {got} bytes")
        for greeting in told.greetings:
            got, gone = _send(address, bytes.fromhex(greeting), reflect=True)
            loot.sessions["NEG-04 reflection"] = loot.sessions.get("NEG-04 reflection", 0) + 1
            if got > ANSWER_BYTES or not gone:
                loot.opened.append(f"NEG-04 reflection at {address}: {got} bytes")


def _crawl(told: Told, loot: Loot) -> None:
    """NEG-06: many connections that send a byte now and then."""
    slow = [
        socket.create_connection(parse_address(told.addresses[number % len(told.addresses)])) for number in range(300)
    ]
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        for sock in slow:
            with contextlib.suppress(OSError):
                sock.send(b"M")
        time.sleep(0.2)
    for sock in slow:
        sock.close()
    loot.sessions["NEG-06 slow"] = len(slow)


def _processes(told: Told, loot: Loot) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def seize(pid: int) -> None:
        if libc.ptrace(_PTRACE_SEIZE, pid, None, None) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def take_descriptor(pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            if libc.syscall(_PIDFD_GETFD, pidfd, 0, 0) < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
        finally:
            os.close(pidfd)

    attempts: dict[str, Callable[[int], object]] = {
        "environ": lambda pid: Path(f"/proc/{pid}/environ").read_bytes(),
        "memory": lambda pid: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)),
        "maps": lambda pid: Path(f"/proc/{pid}/maps").read_text(),
        "descriptors": lambda pid: os.listdir(f"/proc/{pid}/fd"),
        "stack": lambda pid: Path(f"/proc/{pid}/stack").read_text(),
        "signal": lambda pid: os.kill(pid, signal.SIGURG),
        "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
        "affinity": lambda pid: os.sched_setaffinity(pid, {0}),
        "ptrace": seize,
        "pidfd_getfd": take_descriptor,
    }
    for pid in told.pids:
        for name, attempt in attempts.items():
            _try(loot, f"{name} of {pid}", lambda attempt=attempt, pid=pid: attempt(pid))  # type: ignore[misc]


def _files(told: Told, loot: Loot) -> None:
    for top in told.folders:
        if "monarch" in Path(top).name:
            _try(loot, f"list {top}", lambda top=top: os.listdir(top))  # type: ignore[misc]
        for folder, folders, files in os.walk(top):
            for name in [*folders, *files]:
                path = f"{folder}/{name}"
                if "monarch" not in path or os.lstat(path).st_uid == os.getuid():
                    continue
                if name in folders:
                    _try(loot, f"list {path}", lambda path=path: os.listdir(path))  # type: ignore[misc]
                    _try(loot, f"write {path}", lambda path=path: os.mkdir(f"{path}/bob"))  # type: ignore[misc]
                else:
                    _try(loot, f"read {path}", lambda path=path: Path(path).read_bytes())  # type: ignore[misc]


def _try(loot: Loot, what: str, attempt: Callable[[], object]) -> None:
    loot.tried += 1
    try:
        attempt()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ESRCH, errno.ENOENT):
            loot.got.append(f"{what}: {error}")
    else:
        loot.got.append(what)


def main() -> None:
    told = Told(**json.load(sys.stdin))
    socket.getaddrinfo("127.0.0.1", 1)  # loads a codec
    X25519PrivateKey.generate()  # and this a backend
    os.setgroups([])
    os.setresgid(told.gid, told.gid, told.gid)
    os.setresuid(told.uid, told.uid, told.uid)
    loot = Loot()
    _processes(told, loot)
    _files(told, loot)
    _crawl(told, loot)
    _network(told, loot)
    print(json.dumps(asdict(loot)))


if __name__ == "__main__":
    main()
