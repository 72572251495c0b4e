"""Whoever cannot prove the key opens nothing, runs nothing, and does not stay."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_hpc.core.errors import (
    AuthenticationError,
    FrameError,
    PeerLost,
)
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.handshake import HELLO_BYTES, Dialing
from monarch_hpc.transport.noise import TAG_BYTES
from monarch_hpc.wire.frames import HEAD_BYTES, Frame, Kind
from tests.system.parties import KEY, LIMITS, PATIENCE_S, Party, parties

__all__ = ["parties"]


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


class _Bomb:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


@pytest.mark.parametrize("opening", ["nothing", "random", "bomb", "true greeting, then a bomb", "replay"])
def test_strangers_open_nothing_run_nothing_and_do_not_stay(
    parties: Callable[..., Party], tmp_path: Path, opening: str
) -> None:
    server, client = parties(), parties(role=Role.CONTROLLER)
    addresses = server.node.listen(["127.0.0.1"])
    port = int(addresses[0].rpartition(":")[2])
    bomb = pickle.dumps(_Bomb(tmp_path / "exploded"))
    true = Dialing(client.identity, KEY, 0, addresses[0]).hello
    data = {
        "nothing": b"",
        "random": os.urandom(4 * HELLO_BYTES),
        "bomb": bomb * (HELLO_BYTES // len(bomb) + 4),
        "true greeting, then a bomb": true + len(bomb).to_bytes(4, "little") + bomb * 10,
        "replay": true + os.urandom(100),
    }[opening]
    for _ in range(3 * LIMITS.max_half_open):  # more than may be half open at once
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
                if opening in ("random", "bomb"):
                    assert not sock.recv(1), "a stranger was answered"
    channel = client.node.connect(addresses)  # who belongs still gets in
    channel.send(Frame(Kind.CALL, 1))
    server.until(lambda: any(frame.dest == 1 for frame in server.frames))
    assert len(server.frames) == len(server.opened) == 1
    assert server.node.channels[client.identity.incarnation].error is None
    assert not (tmp_path / "exploded").exists()


def test_a_silent_connection_is_dropped_at_the_deadline(parties: Callable[..., Party]) -> None:
    server = parties()
    (address,) = server.node.listen(["127.0.0.1"])
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(b"MNHP")
        assert sock.recv(1) == b""
    server.until(lambda: server.node.num_refused == 1)


def test_a_tampered_record_ends_the_channel(parties: Callable[..., Party]) -> None:
    server, client = parties(), parties()
    (address,) = server.node.listen(["127.0.0.1"])
    proxy = socket.create_server(("127.0.0.1", 0))

    def flip() -> None:
        near, _ = proxy.accept()
        with near, socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as far:
            far.sendall(near.recv(HELLO_BYTES, socket.MSG_WAITALL))
            near.sendall(far.recv(4096))
            far.sendall(near.recv(4 + HEAD_BYTES + TAG_BYTES, socket.MSG_WAITALL))  # the proof
            record = bytearray(near.recv(4096))
            record[-1] ^= 1
            far.sendall(record)
            assert not far.recv(4096)  # the server hangs up

    thread = threading.Thread(target=flip)
    thread.start()
    channel = client.node.connect([f"tcp://127.0.0.1:{proxy.getsockname()[1]}"])
    channel.send(Frame(Kind.CALL, 1, 0, b"pay 1"))
    server.until(lambda: bool(server.lost))
    assert isinstance(server.lost[0], FrameError)
    assert not server.frames
    client.until(lambda: bool(client.lost))
    thread.join(PATIENCE_S)
    proxy.close()
