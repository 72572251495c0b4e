"""Attacks on a program by another user of the same primary group (NEG-02 to NEG-09, 12, 19).

`pytest -rP tests/system/security/test_second_user.py` shows the figures.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.secure.handshake import Dialing
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.attacker import PATIENCE_S, Told, attack
from tests.system.support.byhand import ByHand, plain
from tests.system.support.paths import paths_below

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a test as a second user")

HIS_UID = 47123
"""Nobody's: processes need no name."""

PROGRAM = """
import sys
import monarch_hpc
from monarch_hpc import Actor, endpoint
class Echo(Actor):
    @endpoint
    def echo(self, value): return value
actors = monarch_hpc.hosts().spawn_procs({"x": 2}).spawn("echo", Echo)
for line in sys.stdin:
    print(sorted(set(actors.echo.call(line.strip()).get().values())), flush=True)
"""


@dataclass
class Victim:
    """A program on two embedded hosts with two procs each, under umask 0.

    Attributes:
        folder: a folder that all users may write, like `/tmp`; contains all files of the program.
        directory: the allocation's directory.
        output: stderr of the program and its procs.
    """

    process: subprocess.Popen[str]
    folder: Path
    directory: Path
    output: Path

    @property
    def key(self) -> bytes:
        return (self.directory / "key").read_bytes()

    @property
    def allocation(self) -> str:
        return str(json.loads((self.directory / "ready.json").read_text())["allocation"])

    def call(self, word: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(word, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == f"['{word}']\n"

    def pids(self) -> list[int]:
        """Pids of the program and all its descendants."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                    found += map(int, (task / "children").read_text().split())
        return found

    def addresses(self) -> list[str]:
        """Listening addresses of these processes, which any user may read."""
        inodes = set()
        for pid in self.pids():
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it has been closed
                    with_name = os.readlink(entry)
                    if with_name.startswith("socket:["):
                        inodes.add(with_name[8:-1])
        found = []
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                host, _, port = local.partition(":")
                assert host == "0100007F", f"it listens beyond loopback: {line}"
                found.append(f"tcp://127.0.0.1:{int(port, 16)}")
        assert not any(line.split()[3] == "0A" and line.split()[9] in inodes for line in _lines("/proc/net/tcp6"))
        return found


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()[1:] if Path(path).exists() else []


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    program, output = folder / "program.py", folder / "stderr"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with output.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", str(program)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            umask=0,
        )
    try:
        (ready,) = wait_until("an allocation", lambda: list(folder.glob("monarch-hpc-*/ready.json")), 60.0)
        begun = Victim(process, folder, ready.parent, output)
        begun.call("before")
        yield begun
        begun.call("after")
        _, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_colleague_opens_reads_and_stops_nothing(victim: Victim) -> None:
    addresses = victim.addresses()
    assert len(addresses) >= 6  # two agents and four procs; UCX does not listen
    sessions = []
    for address in addresses:
        with ByHand(address, role=Role.TOOL, allocation=victim.allocation, key=victim.key) as session:
            session.prove()
            with contextlib.suppress(OSError):  # agents other than the head close the connection
                session.send(b"".join(session.record(plain(Frame(Kind.PING, number))) for number in range(3)))
            sessions.append(session.sent)
    unsent = [
        Dialing(Identity(victim.allocation, Role.TOOL, "here", new_incarnation()), victim.key, 0, "there").hello
        for _ in range(8)
    ]
    bombs = Path(tempfile.mkdtemp(dir=victim.folder, prefix="bombs"))
    bombs.chmod(0o1777)
    loot = attack(
        Told(
            uid=HIS_UID,
            gid=os.getegid(),
            addresses=addresses,
            allocation=victim.allocation,
            sessions=[session.hex() for session in sessions],
            greetings=[hello.hex() for hello in unsent],
            pids=victim.pids(),
            folders=[str(victim.folder), "/dev/shm"],
            bombs=str(bombs),
        )
    )
    print(f"{sum(loot.sessions.values())} sessions {loot.sessions}, {len(loot.opened)} opened")
    print(f"{loot.tried} attempts on processes and files, {len(loot.got)} not denied; bombs: {os.listdir(bombs)}")
    assert not loot.opened and not loot.got and not os.listdir(bombs)
    assert loot.tried > 50 and sum(loot.sessions.values()) > 1000
    victim.call("meanwhile")
    with ByHand(addresses[0], role=Role.TOOL, allocation=victim.allocation, key=victim.key) as session:
        session.prove()  # a holder of the key is accepted
    logs = wait_until("a line in the agents' logs", lambda: _refusals(victim), PATIENCE_S)
    assert "at rank" in logs
    assert "refused" not in victim.output.read_text(), "strangers write to the user's terminal"


def _refusals(victim: Victim) -> str:
    lines = [line for path in victim.directory.glob("*.err") for line in path.read_text().splitlines()]
    return "\n".join(line for line in lines if "without the allocation's key" in line)


def test_the_key_is_in_its_file_and_nowhere_else(victim: Victim) -> None:
    key = victim.key
    forms = [key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key)[:-2], repr(key)[2:-1].encode()]

    def holds(path: Path) -> bool:
        try:
            data = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # a process of another program that has just ended
            return False
        return any(form in data for form in forms)

    searched = [Path(f"/proc/{pid}/{name}") for pid in victim.pids() for name in ("cmdline", "environ")]
    searched += [path for path in paths_below(victim.folder) if path.is_file()]
    searched += [path for path in paths_below(Path("/dev/shm")) if "monarch-hpc-" in str(path) and path.is_file()]
    found = [path for path in searched if holds(path)]
    print(f"{len(searched)} places searched, the key is in {found}")
    assert found == [victim.directory / "key"]


def test_under_any_umask_nothing_is_open_to_others(victim: Victim) -> None:
    ours = [path for path in paths_below(victim.folder) if "monarch-hpc" in str(path)]
    ours += [path for path in paths_below(Path("/dev/shm")) if victim.allocation in str(path)]
    assert len(ours) > 5
    assert [path for path in ours if not path.is_symlink() and path.lstat().st_mode & 0o077] == []


def test_no_socket_has_a_name_that_others_may_take(victim: Victim) -> None:
    names = [line.split()[7] for line in _lines("/proc/net/unix") if len(line.split()) > 7]
    assert [name for name in names if name.startswith("@") and "monarch" in name] == []


def test_ucx_over_tcp_is_refused_on_a_network_that_is_not_trusted(victim: Victim) -> None:
    """NEG-19: a process that can connect to UCX's tcp can write this process's memory."""
    done = subprocess.run(
        [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "1", "--", "true"],
        env={**os.environ, "UCX_TLS": "tcp,self", "TMPDIR": str(victim.folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "opens UCX over tcp, which trusts its network" in done.stderr
