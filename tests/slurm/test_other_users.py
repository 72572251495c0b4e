"""Another user of the same hosts cannot reach any of alice's processes or files (NEG-01, NEG-15).

`pytest -rP tests/slurm/test_other_users.py` shows the figures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.testing.slurmlab import SlurmLab
from monarch_hpc.transport.secure.handshake import Dialing
from tests.guards.tree import ROOT
from tests.slurm.commands import HOSTS, SLEEPER, Alice, alice, argv, held, until_printed, write
from tests.system.support.attacker import Loot, Told

__all__ = ["alice", "held"]

HELLO = str(ROOT / "examples" / "hello_mesh.py")
NUM_SESSIONS = 10_000


@pytest.fixture
def running(held: Alice) -> Iterator[Alice]:
    """Alice with a run of eight procs."""
    run = held.start("run", "-a", "dev", write(held, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
    until_printed(run, "ready")
    yield held
    assert run.poll() is None, "the run did not survive"
    assert held.run("run", "-a", "dev", HELLO).returncode == 0
    run.signal_group(signal.SIGINT)
    run.communicate(timeout=180)


def directory_of(alice: Alice) -> Path:
    """The allocation's directory."""
    (directory,) = (path for path in alice.shared.iterdir() if path.is_dir())
    return directory


def ready_file(alice: Alice) -> Path:
    return directory_of(alice) / "attempts" / "1" / "ready.json"


def listening(lab: SlurmLab) -> list[str]:
    """Every TCP address that one of alice's processes listens on, on any host."""
    found = []
    for host in ("login", *HOSTS):
        table = lab.run(["ss", "-Hltnp"], host=host).stdout
        for line in table.splitlines():
            address = line.split()[3]
            if "python" not in line and "monarch" not in line:  # srun's own, or the lab's daemons
                continue
            assert not address.startswith(("0.0.0.0", "*", "[::]")), f"{host} listens everywhere: {line}"
            found.append(f"tcp://{address}")
    return found


def memory_bytes(alice: Alice) -> dict[str, int]:
    """The private memory of each of her processes that runs our code, as the kernel counts it."""
    held = {}
    for host in ("login", *HOSTS):
        for pid, command in alice.lab.processes("alice", host):
            if "python" in command:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                        if line.startswith("RssAnon:"):
                            held[f"{pid} on {host}"] = 1024 * int(line.split()[1])
    return held


def test_no_file_and_no_command_of_hers_is_for_another_user(running: Alice) -> None:
    lab = running.lab
    directory = directory_of(running)
    for path in (directory, running.state, *directory.rglob("*"), *running.state.rglob("*.json")):
        for host in ("login", "n1"):
            assert lab.run(["cat", str(path)], user="bob", host=host).returncode != 0
    attach = lab.run(argv("run", "--", "true"), user="bob", env={"MONARCH_HPC_DIRECTORY": str(directory)})
    assert attach.returncode == 0 and "embedded" in attach.stderr  # bob gets his own allocation, not alice's


# Silent connections, random bytes, and greetings that lack only the key.
_SCAN = """
import collections, json, os, random, socket, sys
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.secure.handshake import Dialing

addresses, allocation, num_sessions = json.loads(sys.argv[1])
silent = collections.deque()
opened = 0
for number in range(num_sessions):
    address = addresses[number % len(addresses)]
    sock = socket.create_connection(parse_address(address), 120)
    kind = random.choice(["silent", "random", "magic"])
    if kind == "silent":
        silent.append(sock)
        if len(silent) > 200:
            silent.popleft().close()
        continue
    data = os.urandom(random.randint(1, 1000))
    if kind == "magic":
        identity = Identity(allocation, Role.CONTROLLER, "bob", new_incarnation())
        data = Dialing(identity, random.choice([bytes(32), os.urandom(32)]), 0, address).hello
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        opened += bool(sock.recv(1000))
    except OSError:  # reset, perhaps before the shutdown
        pass
    sock.close()
print(opened)
"""


def test_a_scan_of_all_ports_opens_nothing_and_costs_nothing(running: Alice) -> None:
    """Bob knows all that is public: the addresses of alice's processes, and the allocation's id."""
    lab = running.lab
    ready = json.loads(ready_file(running).read_text())
    addresses = listening(lab)
    assert len(addresses) >= sum(len(host["addresses"]) for host in ready["hosts"]) + 8
    told = json.dumps([addresses, ready["allocation"], NUM_SESSIONS // 2])
    before = memory_bytes(running)
    scans = [
        lab.popen([sys.executable, "-c", _SCAN, told], user="bob", host=host, folder=Path("/"))
        for host in ("login", "n2")
    ]
    outputs = [scan.communicate(timeout=240) for scan in scans]
    assert all(scan.returncode == 0 for scan in scans), outputs
    opened = sum(int(out) for out, _ in outputs)
    after = memory_bytes(running)
    grown = {name: after[name] - before[name] for name in before}
    print(
        f"{opened} sessions opened of {NUM_SESSIONS} at {len(addresses)} ports; {len(grown)} processes alive; "
        f"at most {max(grown.values()) // 1024} KiB more memory"
    )
    assert opened == 0
    assert max(grown.values()) <= 2**20, grown


def test_a_colleague_of_her_group_gets_nothing_on_a_host(running: Alice) -> None:
    """As tests/system/security/test_second_user.py, with users of the machine, and bob in alice's primary group."""
    lab = running.lab
    uids = lab.settings.uids
    ready = json.loads(ready_file(running).read_text())
    key = (directory_of(running) / "key").read_bytes()
    hello = Dialing(Identity(ready["allocation"], Role.TOOL, "login", new_incarnation()), key, 0, "there").hello
    search = ["find", "/proc", "-maxdepth", "1", "-name", "[0-9]*", "-user", "alice"]
    hers = lab.run(search, user="root", host="n2", check=True).stdout.split()
    told = Told(
        uid=uids["bob"],
        gid=uids["alice"],
        addresses=listening(lab),
        allocation=ready["allocation"],
        sessions=[],
        greetings=[hello.hex()],
        pids=[int(Path(path).name) for path in hers],
        folders=[str(directory_of(running)), str(running.state), "/dev/shm"],
        bombs="/tmp",
    )
    attacker = [sys.executable, "-m", "tests.system.support.attacker"]
    done = lab.run(attacker, user="root", host="n2", folder=ROOT, stdin=json.dumps(dataclasses.asdict(told)))
    assert done.returncode == 0, done.stderr
    loot = Loot(**json.loads(done.stdout))
    print(f"{sum(loot.sessions.values())} sessions, {loot.opened} opened; {loot.tried} attempts, {loot.got} not denied")
    assert not loot.opened and not loot.got
    assert loot.tried > 30 and sum(loot.sessions.values()) > 500


# Accepts every greeting, and answers with garbage, an echo, or a given text.
_IMPOSTOR = """
import itertools, os, socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
for number in itertools.count():
    sock, _ = server.accept()
    with sock:
        hello = sock.recv(192, socket.MSG_WAITALL)
        print("greeted", len(hello), flush=True)
        sock.sendall([os.urandom(144), hello, bytes(144)][number % 3])
"""


def test_who_listens_where_her_agents_did_is_not_believed(held: Alice) -> None:
    """The agents' addresses lead to bob, as if the agents had ended and bob had got their ports."""
    lab = held.lab
    address = lab.address("n1")
    impostor = lab.popen([sys.executable, "-c", _IMPOSTOR, address], user="bob", host="n1", folder=Path("/"))
    assert impostor.stdout is not None
    port = impostor.stdout.readline().strip()
    path = ready_file(held)
    text = path.read_text()
    ready = json.loads(text)
    for host in ready["hosts"]:
        host["addresses"] = [f"tcp://{address}:{port}"]
    ready["addresses"] = [f"tcp://{address}:{port}"]
    written, told, refused = json.dumps(ready), 0, 0
    while told < 6:
        path.write_text(written)
        done = held.run("run", "-a", "dev", HELLO)
        if path.read_text() != written:  # the head writes it again, once, when all hosts were due
            continue
        told += 1
        assert done.returncode in (72, 77), done.stderr  # 72: on a busy machine bob may answer too late
        refused += done.returncode == 77 and "not part of this allocation" in done.stderr
    path.write_text(text)
    impostor.kill()
    greeted, _ = impostor.communicate(timeout=180)
    print("refused", refused, "of 6;", greeted.count("greeted 192"), "greetings")
    assert refused > 0 and greeted.count("greeted 192") >= 6
    assert held.run("run", "-a", "dev", HELLO).returncode == 0


# Binds the names that later meshes of the run would use if its sockets were abstract, which any user may bind.
_SQUATTER = """
import os, re, socket, sys
taken = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
    except OSError:
        continue
    if "monarch_hpc.agent.procs.mpi_task" in words and not taken:
        words = words[words.index("monarch_hpc.agent.procs.mpi_task") + 1:]
        told = "-".join(words).strip("-").removeprefix("monarch-hpc-")
        base, mesh, host = re.fullmatch(r"(.*-)(\\d+)-(\\d+)", told).groups()
        for later in range(1, 20):
            taken.append(socket.socket(socket.AF_UNIX))
            taken[-1].bind(f"{chr(0)}monarch-hpc-{base}{int(mesh) + later}-{host}")
print(len(taken), "taken", flush=True)
sys.stdin.read()
"""

_TWO_MESHES = """
import sys
import monarch_hpc
from monarch_hpc import Actor, endpoint
class Rank(Actor):
    @endpoint
    def rank(self): return monarch_hpc.context().proc.rank
for number in range(2):
    with monarch_hpc.hosts().spawn_procs({"x": 1}, mpi=True) as procs:
        print(sorted(procs.spawn("rank", Rank).rank.call().get().values()), flush=True)
        if number == 0:
            sys.stdin.readline()
"""


def test_who_takes_names_in_advance_holds_up_no_mesh_of_mpi(held: Alice) -> None:
    """Bob sees the tasks of the first mesh in the list of processes, and predicts the names of the second."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    lab = held.lab
    program = argv("run", write(held, "two.py", _TWO_MESHES))
    run = lab.popen(program, env=held.environment({}), stdin=subprocess.PIPE)
    until_printed(run, "[0, 1, 2, 3]")
    told = [sys.executable, "-c", _SQUATTER]
    squatter = lab.popen(told, user="bob", host="n2", folder=Path("/"), stdin=subprocess.PIPE)
    taken = until_printed(squatter, "taken")
    names = lab.run(["cat", "/proc/net/unix"], user="bob", host="n2", check=True).stdout
    out, err = run.communicate("go on\n", timeout=90)
    squatter.communicate("", timeout=60)
    assert run.returncode == 0 and "[0, 1, 2, 3]" in out, out + err
    assert taken.split()[0] == "19"
    ours = [line.split()[-1] for line in names.splitlines() if "monarch-hpc" in line]
    his = [name for name in ours if name.startswith("@")]
    assert len(his) == 19 and len(ours) > len(his), ours
