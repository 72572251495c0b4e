"""Networks that are cut, flap, or lead nowhere: work continues where it can, and faults are noticed in time."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.slurmlab import HostProcess
from tests.slurm.commands import SLEEPER, Alice, Standing, alice, release, until_printed, write

__all__ = ["alice"]

HOSTS = ("n1", "n2", "n3")
SETTINGS = {
    "MONARCH_HPC_LIVENESS__HEARTBEAT_S": "0.25",
    "MONARCH_HPC_LIVENESS__SUSPECT_S": "1",
    # None is lost by its silence, however long a cable is unplugged.
    "MONARCH_HPC_LIVENESS__DEAD_S": "600",
    # Longer than any call here may take: one that waited for a host out of reach would fail.
    "MONARCH_HPC_TRANSPORT__CONNECT_S": "100",
}

PEERS = """
import itertools, sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.ids import Role

class Peer(Actor):
    def __init__(self): self.total = 0
    @endpoint
    def add(self, amount):
        self.total += amount
        return self.total
    @endpoint
    def ask(self, other):
        other.add.call_one(1).get(60)
        way, = {c.peer.address.rpartition(":")[0] for c in self.channels()}
        return way
    @endpoint
    def watch(self):
        channel, = self.channels()
        Runtime.current.engine.wait(lambda: channel.error is not None, 80)
        return str(channel.error)
    def channels(self):
        return [c for c in Runtime.current.node.channels.values() if c.peer.role is Role.PROC]

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1})
peers = procs.spawn("peers", Peer)
second, third = peers.slice(hosts=1), peers.slice(hosts=2)
def say(*words): print(*words, flush=True)
"""


CUT_S = 3.0


@pytest.fixture(params=[CUT_S], ids=[""])
def held(standing: Standing, request: pytest.FixtureRequest) -> Iterator[Alice]:
    """Alice with a ready allocation `dev` of three hosts, the head on the first, and timeouts of a few seconds."""
    alice = standing.take(
        ("-N", "3", "-w", "n[1-3]", "-t", "30"), {**SETTINGS, "MONARCH_HPC_TRANSPORT__CUT_S": str(request.param)}
    )
    yield alice
    for one, other in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
        alice.lab.join(one, other)
    standing.check()


def program(alice: Alice, text: str) -> str:
    path = alice.folder / "peers.py"
    alice.lab.run(["sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', str(path)], stdin=PEERS + text, check=True)
    return str(path)


def states(alice: Alice) -> list[object]:
    (shown,) = alice.status("dev")
    assert isinstance(shown["hosts"], list)
    return [host["state"] for host in shown["hosts"]]


def all_alive(alice: Alice) -> None:
    """Check that no host is lost; one that the processors are kept from may be suspect for a moment."""
    wait_until("all hosts", lambda: states(alice), 120.0, accept=lambda seen: seen == ["alive"] * 3)


def end(process: HostProcess) -> str:
    process.signal_group(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    return err


def test_two_hosts_that_cannot_connect_speak_through_the_head(held: Alice) -> None:
    text = "say(second.ask.call_one(third).get(80))\nsay(third.ask.call_one(second).get(80))\n"
    held.lab.cut("n2", "n3")
    done = held.run("run", "-a", "dev", program(held, text))
    assert done.returncode == 0, done.stderr
    # The second host is asked over the established channel, whose origin it sees.
    head = held.lab.address("n1")
    assert done.stdout.splitlines() == [f"via+tcp://{head}", f"tcp://{head}"]
    all_alive(held)
    held.lab.join("n2", "n3")
    done = held.run("run", "-a", "dev", program(held, text))
    assert done.stdout.splitlines()[0] == f"tcp://{held.lab.address('n3')}"


@contextlib.contextmanager
def walls(held: Alice) -> Iterator[None]:
    """Let the login host reach only the first host."""
    # Our connections have ports from the kernel's range at both ends, Slurm's at one end only. 6 is TCP where no
    # /etc/protocols says so.
    rule = f"to {held.lab.address('login')} ipproto 6 sport 32768-60999 dport 32768-60999 blackhole".split()
    for host in HOSTS[1:]:
        held.lab.run(["ip", "rule", "add", *rule], user="root", host=host, check=True)
    try:
        yield
    finally:
        for host in HOSTS[1:]:
            held.lab.run(["ip", "rule", "del", *rule], user="root", host=host, check=True)


def test_a_program_reaches_hosts_through_the_head_and_starts_no_relay(held: Alice) -> None:
    text = """
say(len(peers.add.call(1).get(60)))
ways = {c.peer.address.rpartition(":")[0] for c in Runtime.current.node.channels.values() if c.peer.role is Role.PROC}
say(*sorted(ways))
# The indirect route that worked before is tried at once.
realms = Runtime.current.node._realms.joined.values()
say(any(realm.dialer.routes.indirect_at_once(["tcp://ADDRESS:1"]) for realm in realms))
monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}).initialized.get(60)
"""
    path = program(held, text.replace("ADDRESS", held.lab.address("n2")))
    env = {"MONARCH_HPC_TRANSPORT__AROUND_AFTER_S": "5"}
    with walls(held):
        # Both indirect routes are tried at the same time, after a while; in sequence each would take `connect_s`.
        done = held.run("run", "-a", "dev", path, env=env)
    assert done.returncode == 0, done.stderr
    head = f"tcp://{held.lab.address('n1')}"
    assert done.stdout.splitlines() == ["3", f"{head} via+{head}", "True"]
    steps = held.slurm("squeue", "--me", "-h", "-s", "-o", "%j").split()
    assert "relay" not in steps
    all_alive(held)


def test_a_link_that_is_cut_later_fails_what_was_under_way_and_the_next_call_goes_around(held: Alice) -> None:
    text = """
last = None
for number in itertools.count():
    try:
        way = second.ask.call_one(third).get(60)
    except monarch_hpc.MonarchError as error:
        way = f"failed: {error}".partition("\\n")[0]
    if way != last:
        say(number, way)
    last = way
"""
    run = held.start("run", "-a", "dev", program(held, text))
    until_printed(run, f"0 tcp://{held.lab.address('n3')}")
    held.lab.cut("n2", "n3")
    assert "acknowledged" in until_printed(run, "failed")  # which the limit of the call is not
    until_printed(run, f"via+tcp://{held.lab.address('n1')}")
    all_alive(held)
    err = end(run)
    assert "is lost" not in err, err


def test_a_half_open_connection_is_noticed_by_an_idle_reader(held: Alice) -> None:
    text = """
second.ask.call_one(third).get(60)
ends = [second.watch.call_one(), third.watch.call_one()]
say("watching")
for end in ends: say("lost:", end.get(90))
"""
    run = held.start("run", "-a", "dev", program(held, text))
    until_printed(run, "watching")
    held.lab.cut("n2", "n3")
    for _ in range(2):
        until_printed(run, "lost: lost")
    all_alive(held)
    run.communicate(timeout=180)
    assert run.returncode == 0


@pytest.mark.parametrize("held", [600.0], indirect=True, ids=[""])
def test_nothing_is_lost_or_done_twice_while_a_cable_is_pulled_and_plugged_in_again(held: Alice) -> None:
    text = """
for number in itertools.count(1):
    assert second.add.call_one(1).get(60) == number, number
    assert second.ask.call_one(third).get(60).startswith("tcp://")
    assert third.add.call_one(0).get(60) == number, number
    if number == 1: say("ready")
"""
    run = held.start("run", "-a", "dev", program(held, text))
    until_printed(run, "ready")
    for _ in range(4):
        held.lab.link_down("n2")
        wait_until("suspicion", lambda: states(held), 120.0, accept=lambda seen: seen == ["alive", "suspect", "alive"])
        held.lab.link_up("n2")
        # TCP retransmits at growing intervals: recovery may take as long as the cable was unplugged.
        all_alive(held)
    err = end(run)
    assert run.returncode == 130, err
    assert "is lost" not in err and "AssertionError" not in err, err


@pytest.fixture
def crossed(alice: Alice) -> Iterator[Alice]:
    """Each host has a second interface that leads nowhere, and a third whose address all of them have."""
    lab = alice.lab
    for number, host in enumerate(("login", *HOSTS)):
        for name, address in (("dead", f"192.168.77.{number + 1}"), ("same", "192.168.78.1")):
            for command in (
                f"ip link add {name}0 up type veth peer name {name}1",
                f"ip addr add {address}/24 dev {name}0",
                f"ip link set {name}1 up",
            ):
                lab.run(command.split(), user="root", host=host, check=True)
    yield alice
    for host in ("login", *HOSTS):
        for name in ("dead0", "same0"):
            lab.run(["ip", "link", "del", name], user="root", host=host, check=True)


def test_of_several_interfaces_the_one_that_routes_is_found(crossed: Alice, held: Alice) -> None:
    (path,) = held.shared.glob("*/attempts/1/ready.json")
    ready = json.loads(path.read_text())
    assert [len(host["addresses"]) for host in ready["hosts"]] == [3, 3, 3]
    done = held.run("run", "-a", "dev", program(held, "say(second.ask.call_one(third).get(80))\n"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"tcp://{held.lab.address('n3')}"]
    all_alive(held)


def test_a_firewall_that_leaves_a_range_of_ports_open_is_no_hindrance(alice: Alice) -> None:
    alice.env["MONARCH_HPC_FABRIC__PORT_RANGE"] = "31000-31019"
    done = alice.run("alloc", "dev", "-N", "2", "-t", "10", "--json")
    assert done.returncode == 0, done.stderr
    run = alice.start("run", "-a", "dev", write(alice, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
    until_printed(run, "ready")
    for host in [host["name"] for host in json.loads(done.stdout)["allocation"]["hosts"]]:
        # Of Slurm there is one more: slurmd's, and the ports of srun, in a range of their own.
        lines = alice.lab.run(["ss", "-Htln"], host=host, check=True).stdout.splitlines()
        ports = {int(line.split()[3].rpartition(":")[2]) for line in lines} - {26818}
        ours = {port for port in ports if not 27000 <= port <= 27999}
        assert len(ours) >= 3 and all(31000 <= port <= 31019 for port in ours), lines
    run.signal_group(signal.SIGTERM)
    run.communicate(timeout=180)
    release(alice)


def test_where_only_hosts_may_connect_the_relay_has_a_connection_of_its_own(alice: Alice) -> None:
    alice.env["MONARCH_HPC_FABRIC__PORT_RANGE"] = "31000-31999"
    done = alice.run("alloc", "dev", "-N", "2", "-t", "10", "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["allocation"]["hosts"][0]["name"]
    # No answer of a host's listener reaches the login node, and its own connections do.
    rule = f"to {alice.lab.address('login')} ipproto 6 sport 31000-31999 blackhole".split()
    for host in alice.lab.hosts:
        alice.lab.run(["ip", "rule", "add", *rule], user="root", host=host, check=True)
    (shown,) = alice.status("dev")
    assert (shown["state"], shown["link"]) == ("ready", "relay")
    text = SLEEPER + "print(sum(map(len, sleepers.double.call(b'x' * 30_000_000).get().values())), flush=True)\n"
    double = "    @endpoint\n    def double(self, data): return data + data\n\nprocs"
    text = text.replace("procs", double, 1) + "sleepers.sleep.call().get()\n"
    run = alice.start("run", "-a", "dev", write(alice, "doubler.py", text))
    until_printed(run, "240000000")
    lines = alice.lab.run(
        ["ss", "-Htn", "state", "established", "sport", "ge", ":31000"], check=True
    ).stdout.splitlines()
    login = alice.lab.address("login")
    backs = {line.split()[3].rpartition(":")[0] for line in lines if re.search(rf" {login}:31\d\d\d ", line)}
    assert backs == {alice.lab.address(first)}, lines
    run.signal_group(signal.SIGTERM)
    run.communicate(timeout=180)
    # Where hosts may not connect either, it goes on over the step.
    for host in alice.lab.hosts:
        both = f"to {login} ipproto 6 dport 31000-31999 blackhole".split()
        alice.lab.run(["ip", "rule", "add", *both], user="root", host=host, check=True)
    run = alice.start("run", "-a", "dev", write(alice, "sleeper.py", SLEEPER))
    until_printed(run, "ready")
    run.communicate(timeout=180)
    assert run.returncode == 0
    for host in alice.lab.hosts:
        for one in (rule, both):
            alice.lab.run(["ip", "rule", "del", *one], user="root", host=host, check=True)
    release(alice)
