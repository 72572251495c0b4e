"""Peers that cannot be dialled: a process that reaches both forwards between them, and can do nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.ids import Role, new_incarnation
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, HELLO_BYTES, Dialing
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import BLOCKED, KEY, LIMITS, PATIENCE_S, Party, hasty, parties

__all__ = ["hasty", "parties"]


@dataclass
class Triangle:
    """A client, a server that it cannot dial, and an agent that both can."""

    client: Party
    server: Party
    agent: Party
    blocked: list[str]  # the server's addresses, as the client knows them
    known: dict[int, Sequence[str]]  # the agent's addresses of other processes
    way: str  # the agent's address

    def connect(self) -> FrameChannel:
        return self.client.node.connect(self.blocked, self.server.identity.incarnation)


@pytest.fixture
def triangle(parties: Callable[..., Party]) -> Triangle:
    known: dict[int, Sequence[str]] = {}
    server, agent = parties(), parties(role=Role.AGENT, forwards=known.get)
    (address,) = server.node.listen(["127.0.0.1"])
    (way,) = agent.node.listen(["127.0.0.1"])
    known[server.identity.incarnation] = [address]
    client = parties(forwarders=[way])
    return Triangle(client, server, agent, [address.replace("127.0.0.1", BLOCKED)], known, way)


def test_a_peer_that_cannot_be_dialled_is_reached_through_an_agent(triangle: Triangle) -> None:
    channel = triangle.connect()
    assert channel.peer.address == f"via+{triangle.way}"
    assert channel.peer.via == triangle.way and not channel.peer.relayed
    assert channel.fabric == f"tcp via {triangle.way}"
    assert channel.peer.incarnation == triangle.server.identity.incarnation
    channel.send(Frame(Kind.CALL, 1, 0, b"there"))
    triangle.server.until(lambda: len(triangle.server.frames) == 1)
    triangle.server.opened[0].send(Frame(Kind.RESULT, 2, 0, b"and back"))
    triangle.client.until(lambda: len(triangle.client.frames) == 1)
    assert not triangle.agent.frames and not triangle.agent.opened
    assert triangle.agent.node.num_half_open == 0


@pytest.mark.slow
def test_much_passes_both_ways_at_once_and_in_order(triangle: Triangle) -> None:
    channel = triangle.connect()
    triangle.server.until(lambda: len(triangle.server.opened) == 1)
    sizes = [0, 100, 70_000, 2**20 + 3] * 10

    def pour(into: FrameChannel) -> None:
        for number, size in enumerate(sizes):
            into.send(Frame(Kind.CALL, number, 0, b"", [bytes([number]) * size]))

    threads = [threading.Thread(target=pour, args=(end,)) for end in (channel, triangle.server.opened[0])]
    for thread in threads:
        thread.start()
    for party in (triangle.server, triangle.client):
        party.until(lambda party=party: len(party.frames) == len(sizes))  # type: ignore[misc]
        assert [(frame.dest, len(frame.buffers[0])) for frame in party.frames] == list(enumerate(sizes))
        assert all(set(frame.buffers[0]) <= {frame.dest} for frame in party.frames)
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_what_is_passed_on_holds_no_more_than_its_buffers(triangle: Triangle) -> None:
    gate = threading.Event()
    triangle.server.on_frame_hook = lambda _channel, _frame: (gate.wait(PATIENCE_S), None)[1]
    channel = triangle.connect()
    sent = 0

    def pour() -> None:
        nonlocal sent
        for _ in range(2000):
            channel.send(Frame(Kind.RESULT, 0, 0, bytes(60_000)))  # calls wait for the actor's credit before
            sent += 1

    before_bytes = _resident_bytes()
    thread = threading.Thread(target=pour)
    thread.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while channel.queued_bytes <= LIMITS.send_queue_bytes:
        assert time.monotonic() < deadline_s, f"{sent} frames sent, nothing held the sender back"
    held_at = sent
    assert held_at < 2000
    # All three are in this process: the sender's queue, and little else.
    assert _resident_bytes() - before_bytes < 2**24
    gate.set()
    thread.join(PATIENCE_S)
    triangle.server.until(lambda: len(triangle.server.frames) == 2000)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("leaver", ["client", "server"])
def test_the_end_of_one_side_reaches_the_other_after_all_it_said(triangle: Triangle, leaver: str) -> None:
    channel = triangle.connect()
    triangle.server.until(lambda: len(triangle.server.opened) == 1)
    ends = {"client": (channel, triangle.server), "server": (triangle.server.opened[0], triangle.client)}
    end, other = ends[leaver]
    for number in range(200):
        end.send(Frame(Kind.CALL, number, 0, bytes(10_000)))
    end.close("enough")
    other.until(lambda: bool(other.lost))
    assert len(other.frames) == 200
    assert isinstance(other.lost[0], PeerLost) and "enough" in str(other.lost[0])


def test_the_end_of_the_agent_ends_what_it_passed_on(triangle: Triangle) -> None:
    triangle.connect()
    triangle.server.until(lambda: len(triangle.server.opened) == 1)
    triangle.agent.node.close("it was told to leave")
    for party in (triangle.client, triangle.server):
        party.until(lambda party=party: bool(party.lost))  # type: ignore[misc]
        assert isinstance(party.lost[0], PeerLost)


def test_dead_and_wrong_addresses_of_all_kinds_cost_little(triangle: Triangle, parties: Callable[..., Party]) -> None:
    stranger = parties(key=os.urandom(32))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wrong = [
            "nonsense",
            _refusing(),
            f"tcp://127.0.0.1:{silent.getsockname()[1]}",
            *stranger.node.listen(["127.0.0.1"]),
        ]
        incarnation = triangle.server.identity.incarnation
        triangle.known[incarnation] = [*wrong[:3], *triangle.known[incarnation]]
        begun_s = time.monotonic()
        channel = triangle.client.node.connect([*wrong, *triangle.blocked], incarnation)
        assert time.monotonic() - begun_s < LIMITS.connect_s  # it has not waited for the silent one
    assert channel.peer.incarnation == incarnation


def _refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"tcp://127.0.0.1:{closed.getsockname()[1]}"


def test_a_way_around_is_known_the_next_time_and_the_direct_one_is_taken_when_it_is_there(
    triangle: Triangle, parties: Callable[..., Party]
) -> None:
    other = parties()
    (address,) = other.node.listen(["127.0.0.1"])
    triangle.known[other.identity.incarnation] = [address]
    assert triangle.connect().peer.via
    blocked = [address.replace("127.0.0.1", BLOCKED)]
    assert triangle.client.node.routes.indirect_at_once(blocked)
    assert triangle.client.node.connect(blocked, other.identity.incarnation).peer.via
    third = parties()
    assert not triangle.client.node.connect(third.node.listen(["127.0.0.1"])).peer.via


def test_whom_the_agent_does_not_know_or_reach_is_lost_with_the_direct_ways_error(triangle: Triangle) -> None:
    refusing = _refusing()
    for addresses in (None, [refusing], []):
        incarnation = new_incarnation()
        if addresses is not None:
            triangle.known[incarnation] = addresses
        with pytest.raises(PeerLost, match="Connection refused"):
            triangle.client.node.connect([refusing], incarnation)
    triangle.agent.until(lambda: triangle.agent.node.num_half_open == 0)
    assert triangle.agent.node.num_refused == 3


def test_whoever_answers_for_another_is_found_out(triangle: Triangle, parties: Callable[..., Party]) -> None:
    impostor = parties(key=os.urandom(32))
    wanted = parties().identity.incarnation
    triangle.known[wanted] = impostor.node.listen(["127.0.0.1"])
    with pytest.raises(PeerLost):
        triangle.client.node.connect([_refusing()], wanted)
    true = triangle.server.identity.incarnation
    triangle.known[wanted] = triangle.known[true]  # a process of the allocation, but not the wanted one
    with pytest.raises(PeerLost):
        triangle.client.node.connect([_refusing()], wanted)
    assert not triangle.server.opened and not impostor.opened


def _is_over(sock: socket.socket) -> bool:
    """Wait for the end of a connection on which nothing more arrives."""
    try:
        return not sock.recv(1)
    except ConnectionResetError:
        return True


def test_strangers_make_an_agent_dial_nobody(triangle: Triangle, parties: Callable[..., Party]) -> None:
    wanted = triangle.server.identity.incarnation
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(0.0)
        triangle.known[wanted] = [f"tcp://127.0.0.1:{target.getsockname()[1]}"]
        stranger = parties(key=os.urandom(32), forwarders=[triangle.way])
        with pytest.raises(PeerLost):
            stranger.node.connect([_refusing()], wanted)
        forged = bytearray(Dialing(triangle.client.identity, KEY, new_incarnation(), triangle.way).hello)
        forged[32:40] = wanted.to_bytes(8, "little")
        with socket.create_connection(parse_address(triangle.way), PATIENCE_S) as sock:
            sock.sendall(forged)
            assert _is_over(sock)
        triangle.agent.until(lambda: triangle.agent.node.num_refused == 2)
        with pytest.raises(BlockingIOError):
            target.accept()


def test_a_recorded_greeting_gets_nowhere_through_an_agent_either(triangle: Triangle) -> None:
    hello = Dialing(triangle.client.identity, KEY, triangle.server.identity.incarnation, triangle.way).hello
    with socket.create_connection(parse_address(triangle.way), PATIENCE_S) as sock:
        sock.sendall(hello)
        assert len(sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)) == ANSWER_BYTES
        sock.sendall(os.urandom(HELLO_BYTES))
        assert _is_over(sock)
    triangle.server.until(lambda: triangle.server.node.num_refused == 1)
    assert not triangle.server.opened


@pytest.mark.slow
def test_an_agent_drops_what_waits_for_a_silent_target(hasty: None, triangle: Triangle) -> None:
    node = triangle.agent.node
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        triangle.known[triangle.server.identity.incarnation] = [f"tcp://127.0.0.1:{silent.getsockname()[1]}"]
        hello = Dialing(triangle.client.identity, KEY, triangle.server.identity.incarnation, triangle.way).hello
        for _ in range(2 * LIMITS.max_half_open):
            sock = stack.enter_context(socket.create_connection(parse_address(triangle.way), PATIENCE_S))
            sock.sendall(hello)
            assert node.num_half_open <= LIMITS.max_half_open
        triangle.agent.until(lambda: (node.num_half_open, node.num_refused) == (0, 2 * LIMITS.max_half_open))


# ---- fencing ----


def _bar(party: Party, incarnation: int, why: str) -> None:
    done = Flag(party.engine)

    def bar() -> None:
        party.node.bar(incarnation, why)
        channel = party.node.channels.get(incarnation)
        if channel is not None:
            channel.give_up(why)
        done.set()

    party.engine.call_soon(bar)
    assert done.wait(PATIENCE_S)


def test_whoever_was_declared_dead_is_refused_and_told_why(parties: Callable[..., Party]) -> None:
    server, frozen, healthy = parties(role=Role.AGENT), parties(role=Role.AGENT), parties(role=Role.AGENT)
    addresses = server.node.listen(["127.0.0.1"])
    frozen.node.connect(addresses)
    server.until(lambda: len(server.opened) == 1)
    _bar(server, frozen.identity.incarnation, "no heartbeat for 15.0 s")
    frozen.until(lambda: len(frozen.lost) == 1)
    back = frozen.node.connect(addresses)
    frozen.until(lambda: len(frozen.lost) == 2)
    assert "it was declared lost: no heartbeat for 15.0 s" in str(back.error)
    with pytest.raises(PeerLost):
        back.send(Frame(Kind.CALL))
    assert (len(server.opened), server.frames) == (1, [])
    assert healthy.node.connect(addresses).error is None
    with pytest.raises(PeerLost, match=r"no heartbeat for 15\.0 s"):
        server.node.connect(frozen.node.listen(["127.0.0.1"]), frozen.identity.incarnation)


def test_the_dead_are_not_passed_on(triangle: Triangle) -> None:
    _bar(triangle.agent, triangle.client.identity.incarnation, "its host is lost")
    with pytest.raises(PeerLost, match="Connection refused"):
        triangle.client.node.connect([_refusing()], triangle.server.identity.incarnation)
    assert not triangle.server.opened


def test_the_controller_of_an_earlier_epoch_is_cut_off_and_not_let_in_again(parties: Callable[..., Party]) -> None:
    proc = parties(role=Role.PROC)
    addresses = proc.node.listen(["127.0.0.1"])
    old, program, new = (parties(role=Role.CONTROLLER) for _ in range(3))
    for party, epoch in ((old, 4), (program, 4), (new, 6)):
        party.node.set_epoch(epoch)
    channel = old.node.connect(addresses)
    assert program.node.connect(addresses).error is None  # of the same tenure
    proc.until(lambda: len(proc.opened) == 2)
    new.node.connect(addresses).send(Frame(Kind.CALL, 1))
    proc.until(lambda: len(proc.frames) == 1)
    for party in (old, program):
        party.until(lambda party=party: len(party.lost) == 1)  # type: ignore[misc]
    with pytest.raises(PeerLost):
        channel.send(Frame(Kind.CALL, 2))
    back = old.node.connect(addresses)
    old.until(lambda: len(old.lost) == 2)
    assert "controller 6 has taken over the run from controller 4" in str(back.error)
    assert (len(proc.opened), len(proc.frames)) == (3, 1)
