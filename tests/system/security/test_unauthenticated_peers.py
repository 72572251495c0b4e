"""A process that cannot prove the key opens nothing, runs nothing, and is disconnected."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_hpc.core.errors import AuthenticationError, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.secure.handshake import HELLO_BYTES, PROOF_BYTES, Dialing
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.byhand import ByHand, flipped, last_words, plain, seal
from tests.system.support.parties import KEY, LIMITS, PATIENCE_S, Party, hasty, parties

__all__ = ["hasty", "parties"]


def test_whoever_lacks_the_key_is_refused_and_told_so(parties: Callable[..., Party]) -> None:
    server, stranger = parties(), parties(key=os.urandom(32))
    addresses = server.node.listen(["127.0.0.1"])
    with pytest.raises(AuthenticationError):
        stranger.node.connect(addresses)
    server.until(lambda: server.node.num_refused == 1)
    assert not server.opened


def test_another_process_at_a_remembered_address_is_refused(parties: Callable[..., Party]) -> None:
    server, client = parties(), parties(role=Role.CONTROLLER)
    addresses = server.node.listen(["127.0.0.1"])
    with pytest.raises(AuthenticationError):
        client.node.connect(addresses, incarnation=12345)


def test_of_several_addresses_the_one_that_answers_wins(parties: Callable[..., Party]) -> None:
    server, client = parties(), parties()
    stranger = parties(key=os.urandom(32))
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    addresses = [f"tcp://127.0.0.1:{port}", *stranger.node.listen(["127.0.0.1"]), *server.node.listen(["127.0.0.1"])]
    assert client.node.connect(addresses).peer.incarnation == server.identity.incarnation


def test_nobody_at_any_address_is_said_in_words(parties: Callable[..., Party]) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    with pytest.raises(PeerLost, match="Connection refused"):
        parties().node.connect([f"tcp://127.0.0.1:{port}"])
    with pytest.raises(PeerLost, match="no address"):
        parties().node.connect([])


@pytest.mark.parametrize("opening", ["nothing", "random", "magic", "true greeting, then random", "replay"])
def test_strangers_open_nothing_and_do_not_stay(parties: Callable[..., Party], opening: str) -> None:
    server, client = parties(), parties(role=Role.CONTROLLER)
    (address,) = server.node.listen(["127.0.0.1"])
    true = Dialing(client.identity, KEY, 0, address).hello
    data = {
        "nothing": b"",
        "random": os.urandom(4 * HELLO_BYTES),
        "magic": true[:48] + os.urandom(HELLO_BYTES - 48),
        "true greeting, then random": true + os.urandom(1000),
        "replay": true + os.urandom(PROOF_BYTES),
    }[opening]
    for _ in range(3 * LIMITS.max_half_open):  # more than may be half-open at once
        with socket.create_connection(parse_address(address)) as sock:
            sock.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
            if opening in ("random", "magic"):
                assert last_words(sock) == b"", "a stranger was answered"
    channel = client.node.connect([address])  # a legitimate peer still gets in
    channel.send(Frame(Kind.CALL, 1))
    server.until(lambda: any(frame.dest == 1 for frame in server.frames))
    assert len(server.frames) == len(server.opened) == 1
    assert server.node.channels[client.identity.incarnation].error is None


class _Bomb:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


def _throw_raw(session: ByHand, bomb: bytes) -> None:
    session.send(bomb * (HELLO_BYTES // len(bomb) + 2))


def _throw_after_greeting(session: ByHand, bomb: bytes) -> None:
    session.greet()
    session.send(bomb * 3)


def _throw_as_second_frame(session: ByHand, bomb: bytes) -> None:
    session.prove()
    session.send(len(bomb).to_bytes(4, "little") + bomb)


def _throw_with_wrong_tag(session: ByHand, bomb: bytes) -> None:
    session.prove()
    record = session.record(plain(Frame(Kind.CALL, 1, 1, bomb)))
    session.send(flipped(record, 8 * len(record) - 1))


def _throw_with_another_key(session: ByHand, bomb: bytes) -> None:
    session.prove()
    session.send(seal(Cipher(os.urandom(32)), plain(Frame(Kind.CALL, 1, 1, bomb))))


@pytest.mark.slow
def test_no_bomb_of_a_stranger_is_unpickled(parties: Callable[..., Party], tmp_path: Path) -> None:
    """NEG-02: as the first frame, after a hello, as the second frame, and with a wrong seal."""
    server = parties()
    server.on_frame_hook = lambda _channel, frame: os.close(pickle.loads(frame.body))  # as procs do
    (address,) = server.node.listen(["127.0.0.1"])
    throws = [
        _throw_raw,
        _throw_after_greeting,
        _throw_as_second_frame,
        _throw_with_wrong_tag,
        _throw_with_another_key,
    ]
    thrown = 0
    for throw in throws * 200:
        with ByHand(address) as session:
            with contextlib.suppress(ConnectionError):
                throw(session, pickle.dumps(_Bomb(tmp_path / f"exploded{thrown}")))
            last_words(session.sock)
        thrown += 1
    created = len(list(tmp_path.iterdir()))
    print(f"{created} files created by {thrown} bombs")
    assert created == 0 and thrown >= 1000
    assert not server.frames
    with ByHand(address) as session:  # from a legitimate peer it does explode, so the bomb works
        session.prove()
        session.send(session.record(plain(Frame(Kind.CALL, 1, 1, pickle.dumps(_Bomb(tmp_path / "exploded"))))))
        wait_until("the explosion", (tmp_path / "exploded").exists)


@pytest.mark.usefixtures("hasty")
def test_a_silent_connection_is_dropped_at_the_deadline(parties: Callable[..., Party]) -> None:
    server = parties()
    (address,) = server.node.listen(["127.0.0.1"])
    begun_s = time.monotonic()
    with socket.create_connection(parse_address(address)) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(b"MNHP")
        assert last_words(sock) == b""
        assert time.monotonic() - begun_s > 0.25  # half of the deadline
    server.until(lambda: server.node.num_refused == 1)


@pytest.mark.parametrize(("role", "num_lines"), [(Role.AGENT, 1), (Role.PROC, 0)])
def test_a_scan_is_a_line_in_an_agents_log_and_none_on_a_users_terminal(
    parties: Callable[..., Party], caplog: pytest.LogCaptureFixture, role: Role, num_lines: int
) -> None:
    server = parties(role=role)
    (address,) = server.node.listen(["127.0.0.1"])
    for _ in range(200):
        with ByHand(address) as session:
            session.send(os.urandom(HELLO_BYTES))
            last_words(session.sock)
    server.until(lambda: server.node.num_refused == 200)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == num_lines
    assert all("127.0.0.1" in line and "1 so far" in line for line in lines)


def test_a_crowd_of_those_who_belong_gets_in_whole(parties: Callable[..., Party]) -> None:
    """Many more at once than may be half-open, all from one address, as when every proc of a mesh calls one."""
    server, client = parties(), parties(role=Role.CONTROLLER)
    addresses = server.node.listen(["127.0.0.1"])
    outcomes: list[FrameChannel | TransportError] = []

    def done(outcome: FrameChannel | TransportError) -> None:
        outcomes.append(outcome)
        client.engine.wake_waiters()

    def dial_all() -> None:
        for _ in range(20 * LIMITS.max_half_open):
            client.node.dial(addresses, 0, done)

    client.engine.call_soon(dial_all)
    client.until(lambda: len(outcomes) == 20 * LIMITS.max_half_open)
    failed = [outcome for outcome in outcomes if isinstance(outcome, TransportError)]
    assert not failed
    server.until(lambda: len(server.opened) == len(outcomes))
