"""A dialling process is not fooled by an impostor that listens in place of one of ours (NEG-15, NEG-04).

`pytest -rP tests/system/security/test_false_listeners.py` shows the figures.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from monarch_hpc.core.errors import AuthenticationError, FrameError, PeerLost, TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, HELLO_BYTES, PROOF_BYTES, Accepting, Dialing
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import ALLOCATION, KEY, LIMITS, PATIENCE_S, Party, parties

__all__ = ["parties"]

NUM_TRIES = 20
ANOTHER = Identity(ALLOCATION, Role.PROC, "there", new_incarnation())


class Impostor:
    """Has taken the port of a process of ours, and answers hellos in its own fashion.

    Args:
        answer: makes the answer to a hello; None closes the connection.
    """

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            with sock, contextlib.suppress(ConnectionError):
                answer = self._answer(sock.recv(HELLO_BYTES, socket.MSG_WAITALL))
                if answer:
                    sock.sendall(answer)
                    sock.recv(1)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._listening.close()


@pytest.fixture
def impostor() -> Iterator[Callable[[Callable[[bytes], bytes | None]], str]]:
    made: list[Impostor] = []

    def make(answer: Callable[[bytes], bytes | None]) -> str:
        made.append(Impostor(answer))
        return made[-1].address

    yield make
    for one in made:
        one.close()


def ask(address: str, hello: bytes) -> bytes:
    """Return the answer of the listener at *address* to a hello."""
    with socket.create_connection(parse_address(address), PATIENCE_S) as sock:
        sock.sendall(hello)
        return sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)


def answer_with(key: bytes, identity: Identity, hello: bytes) -> bytes | None:
    accepting = Accepting(identity, key, "there")
    try:
        accepting.read(hello)
        return accepting.answer()[0]
    except AuthenticationError:
        return None


def test_impostors_are_refused_whatever_they_say(
    parties: Callable[..., Party], impostor: Callable[[Callable[[bytes], bytes | None]], str]
) -> None:
    client, server = parties(role=Role.CONTROLLER), parties()
    (true,) = server.node.listen(["127.0.0.1"])
    (own,) = client.node.listen(["127.0.0.1"])
    wanted = server.identity.incarnation
    recorded = ask(true, Dialing(client.identity, KEY, wanted, true).hello)
    answers: dict[str, Callable[[bytes], bytes | None]] = {
        "hangs up": lambda _hello: None,
        "says random things": lambda _hello: os.urandom(ANSWER_BYTES),
        "says nothing but zeros": lambda _hello: bytes(ANSWER_BYTES),
        "echoes": lambda hello: hello,
        "greets in turn": lambda _hello: Dialing(ANOTHER, KEY, 0, "").hello,
        "has another key": lambda hello: answer_with(os.urandom(32), ANOTHER, hello),
        "is another process of ours": lambda hello: answer_with(KEY, ANOTHER, hello),
        "plays a recorded answer": lambda _hello: recorded,
        "leads us to our own door": lambda hello: ask(own, hello),
    }
    refused: dict[str, int] = {}
    for what, answer in answers.items():
        address = impostor(answer)
        for incarnation in [wanted, 0] * (NUM_TRIES // 2):
            if what == "is another process of ours" and not incarnation:
                continue  # any process of the allocation may answer incarnation 0
            with contextlib.suppress(AuthenticationError):
                client.node.connect([address], incarnation)
                raise AssertionError(f"an impostor that {what} was believed")
            refused[what] = refused.get(what, 0) + 1
    print("refused", sum(refused.values()), "of", sum(refused.values()), refused)
    assert not client.opened and not server.opened and not client.node.channels
    assert client.node.connect([address, true], wanted).peer.incarnation == wanted  # of the two, the true one wins


class Between:
    """Forwards between a client and a server, altering one record."""

    def __init__(self, address: str, change: Callable[[bytes], bytes]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._target = parse_address(address)
        self._change = change
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        near, _ = self._listening.accept()
        with near, socket.create_connection(self._target) as far, contextlib.suppress(ConnectionError):
            far.sendall(near.recv(HELLO_BYTES, socket.MSG_WAITALL))
            near.sendall(far.recv(ANSWER_BYTES, socket.MSG_WAITALL))
            far.sendall(near.recv(PROOF_BYTES, socket.MSG_WAITALL))
            for number in range(3):
                size = near.recv(4, socket.MSG_WAITALL)
                record = size + near.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
                far.sendall(self._change(record) if number == 1 else record)
            far.recv(1)  # until it closes

    def close(self) -> None:
        self._thread.join(PATIENCE_S)
        self._listening.close()


@pytest.mark.parametrize(
    ("change", "arrived"),
    [
        (lambda record: record[:-1] + bytes([record[-1] ^ 1]), [0]),
        (lambda record: record * 2, [0, 1]),
        (lambda record: b"", [0]),
    ],
    ids=["altered", "doubled", "held back"],
)
def test_who_stands_in_between_can_only_end_the_channel(
    parties: Callable[..., Party], change: Callable[[bytes], bytes], arrived: list[int]
) -> None:
    server, client = parties(), parties(role=Role.CONTROLLER)
    (address,) = server.node.listen(["127.0.0.1"])
    between = Between(address, change)
    channel = client.node.connect([between.address])
    for dest in range(3):
        with contextlib.suppress(TransportError):
            channel.send(Frame(Kind.CALL, dest))
    server.until(lambda: bool(server.lost))
    assert isinstance(server.lost[0], FrameError)
    assert [frame.dest for frame in server.frames] == arrived
    client.until(lambda: bool(client.lost))
    between.close()


def resetting(address: str, times: int) -> tuple[socket.socket, threading.Thread, str]:
    """A proxy before *address* that uses up the hellos of *times* connections and resets them, then forwards one."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(times):
            sock, _ = door.accept()
            hello = sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
            if address:
                assert ask(address, hello)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        with contextlib.suppress(OSError):
            near, _ = door.accept()
            with near, socket.create_connection(parse_address(address)) as far:
                far.sendall(near.recv(HELLO_BYTES, socket.MSG_WAITALL))
                near.sendall(far.recv(ANSWER_BYTES, socket.MSG_WAITALL))
                far.sendall(near.recv(PROOF_BYTES, socket.MSG_WAITALL))
                near.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    return door, thread, f"tcp://127.0.0.1:{door.getsockname()[1]}"


def test_who_is_reset_in_a_crowd_of_strangers_tries_again(parties: Callable[..., Party]) -> None:
    server, client = parties(), parties(role=Role.CONTROLLER)
    (address,) = server.node.listen(["127.0.0.1"])
    door, thread, before = resetting(address, 3)  # a process answers no hello twice: each is a new one
    channel = client.node.connect([before])
    assert channel.peer.incarnation == server.identity.incarnation
    channel.close("done")
    thread.join(PATIENCE_S)
    door.close()


@pytest.mark.slow
def test_who_is_reset_again_and_again_gives_up_soon(parties: Callable[..., Party]) -> None:
    door, thread, address = resetting("", 6)
    begun_s = time.monotonic()
    with pytest.raises(PeerLost, match="reset"):
        parties().node.connect([address])
    assert time.monotonic() - begun_s < LIMITS.connect_s
    door.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)
    door.close()
