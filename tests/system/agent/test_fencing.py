"""Processes that were declared dead or replaced, and come back: refused with the reason, and harmless to others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_hpc.attach.head.status import query_status
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.core.storage.files import read_json
from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.wire.control.allocation import HostEnded
from monarch_hpc.wire.control.procs import ProcEnded
from monarch_hpc.wire.control.runs import CloseRun
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.agent_client import Client, alive
from tests.system.support.parties import PATIENCE_S, Party, parties

__all__ = ["parties"]


def test_a_controller_that_another_replaced_is_told_and_has_no_say_any_more(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as old, Client(directory, "bbbbbbbb") as neighbour:
        (pid,) = old.spawn_ready([0])
        with Client(directory, "aaaaaaaa") as new:
            wait_until("the end of the first one's channel", lambda: old.lost)
            assert "another program has taken over run aaaaaaaa" in str(old.lost)
            assert new.opened.epoch > old.opened.epoch
            wait_until("the end of its proc", lambda: not alive(pid))
            (kept,) = new.spawn_ready([0])
            # It returns under the same incarnation: it is sent the reason, and its requests are refused.
            old.lost = None
            node = old.attachment.node
            channel = node.connect(old.attachment.ready.addresses)
            with contextlib.suppress(PeerLost):
                channel.send(Frame(Kind.CONTROL, body=b'{"op":"CloseRun","run":"aaaaaaaa","exit_code":0}'))
            wait_until("the refusal", lambda: old.lost)
            assert "it was declared lost" in str(old.lost)
            assert alive(kept)
            new.spawn_ready([1])
            assert not [message for message in new.messages if isinstance(message, HostEnded | ProcEnded)]
            new.send(CloseRun("aaaaaaaa", 0))
        # Other runs have other controllers, and are not affected.
        assert neighbour.lost is None
        neighbour.spawn_ready([0])


@pytest.mark.slow
def test_a_head_that_stood_still_has_lost_nobody(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.spawn_ready([0, 1])
        engine, head = client.attachment.node.engine, client.attachment.channel
        seen: list[Liveness] = []

        def note(_channel: FrameChannel, life: Liveness) -> None:
            seen.append(life)
            engine.wake_waiters()

        engine.call_soon(lambda: Heartbeat(engine, 0.1, Lease(1.2, PATIENCE_S), note).watch(head))
        os.kill(head_of(directory), signal.SIGSTOP)
        try:
            # Three times as long as agents allow; on a busy machine it may have been suspect before.
            assert engine.wait(lambda: seen[-1:] == [Liveness.SUSPECT], PATIENCE_S), seen
        finally:
            os.kill(head_of(directory), signal.SIGCONT)
        assert engine.wait(lambda: seen[-1:] == [Liveness.ALIVE], PATIENCE_S), seen
        wait_until("all hosts", lambda: states(directory), accept=lambda seen: seen == ["alive", "alive"])
        client.spawn_ready([0, 1])
        assert all(alive(pid) for pid in pids)
        assert not [message for message in client.messages if isinstance(message, HostEnded | ProcEnded)]


def states(directory: Path) -> list[object]:
    status = query_status(directory, 60.0)
    return [host["state"] for host in status["hosts"]] if status else []


def head_of(directory: Path) -> int:
    """The process id of the first host's agent."""
    document = read_json(directory / "hosts" / "0.json")
    assert isinstance(document, dict)
    return int(str(document["pid"]))


@contextlib.contextmanager
def judge(addresses: list[str], lease: Lease) -> Iterator[tuple[int, int]]:
    """A process that dials a peer and judges it by heartbeats; yields its id, and the fd on which it reports losses."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            party = Party(role=Role.AGENT)
            channel = party.node.connect(addresses)
            party.engine.call_soon(lambda: Heartbeat(party.engine, lease.suspect_s / 4, lease).watch(channel))
            party.until(lambda: bool(party.lost))
            os.write(write_fd, str(party.lost[0]).encode())
        os._exit(0)
    os.close(write_fd)
    os.set_blocking(read_fd, False)
    try:
        yield child, read_fd
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_fd)


@pytest.mark.slow
def test_whoever_was_frozen_for_longer_than_it_takes_to_be_dead_condemns_nobody(
    parties: Callable[..., Party],
) -> None:
    healthy = parties(role=Role.AGENT)
    seen: list[Liveness] = []
    changed = Flag(healthy.engine)

    def note(_channel: FrameChannel, life: Liveness) -> None:
        seen.append(life)
        healthy.engine.wake_waiters()

    addresses = healthy.node.listen(["127.0.0.1"])
    # Only the other side stands still on purpose: it may wait for this one for as long as a busy machine needs.
    with judge(addresses, Lease(1.0, 4.0)) as (frozen, reports):
        healthy.until(lambda: bool(healthy.opened))

        def watch() -> None:
            # It suspects after more than the time after which the other side declares dead.
            Heartbeat(healthy.engine, 0.05, Lease(5.0, 10 * PATIENCE_S), note).watch(healthy.opened[0])
            changed.set()

        healthy.engine.call_soon(watch)
        assert changed.wait(PATIENCE_S)
        os.kill(frozen, signal.SIGSTOP)
        healthy.until(lambda: seen[-1:] == [Liveness.SUSPECT])
        os.kill(frozen, signal.SIGCONT)
        healthy.until(lambda: seen[-1:] == [Liveness.ALIVE])
        assert not healthy.lost
        with pytest.raises(BlockingIOError):
            os.read(reports, 1000)


def test_whoever_comes_back_too_late_is_given_up_and_not_let_in_again(parties: Callable[..., Party]) -> None:
    server, frozen = parties(role=Role.AGENT), parties(role=Role.AGENT)
    addresses = server.node.listen(["127.0.0.1"])
    frozen.node.connect(addresses)  # and sends no heartbeat

    def bury(channel: FrameChannel, life: Liveness) -> None:
        if life is Liveness.DEAD:
            server.node.bar(channel.peer.incarnation, "no heartbeat")

    server.until(lambda: bool(server.opened))
    server.engine.call_soon(lambda: Heartbeat(server.engine, 0.05, Lease(0.1, 0.2), bury).watch(server.opened[0]))
    server.until(lambda: bool(server.lost))
    frozen.until(lambda: len(frozen.lost) == 1)
    frozen.node.connect(addresses)
    frozen.until(lambda: len(frozen.lost) == 2)
    assert "it was declared lost: no heartbeat" in str(frozen.lost[1])
    assert len(server.opened) == 1
