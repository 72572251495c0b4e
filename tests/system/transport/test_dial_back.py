"""A relay changes from its pipes to a connection that its far end has made, and strangers cannot make it."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from monarch_hpc.attach.dial_back import BackDialer, BackListener
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.connect.relay import GREETING, Relay
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag

_R = TypeVar("_R")
HERE = ["127.0.0.1"]
NUM_BYTES = 3_000_000


def on(engine: Engine, call: Callable[[], _R]) -> _R:
    """Call on the engine's driver."""
    found: list[_R] = []
    done = Flag(engine)

    def work() -> None:
        found.append(call())
        done.set()

    engine.call_soon(work)
    assert done.wait(30.0)
    return found[0]


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets, to one client after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(1 << 16):
                        connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30.0)


def is_closed(sock: socket.socket) -> bool:
    """Wait until the other end closes; with a reset if it has not read all."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


class Ends:
    """Both ends of a relay, and why they have ended."""

    def __init__(self, engine: Engine, *, dial_back: bool = True) -> None:
        self.engine = engine
        self.over: list[str] = []
        self.changed: list[socket.socket] = []
        to_far, to_near = os.pipe(), os.pipe()

        def make() -> tuple[Relay, Relay]:
            near = Relay(engine, to_near[0], to_far[1], far=False, over=self.over.append)
            far = Relay(engine, to_far[0], to_near[1], far=True, over=self.over.append, reach=self._reach)
            self.far = far
            self.listener = BackListener(engine, HERE if dial_back else [], "", near.offer)
            return near, far

        self.near, self.far = on(engine, make)

    def _reach(self, how: bytes) -> None:
        def change(connection: socket.socket) -> None:
            self.changed.append(connection)
            self.far.change_to(connection)

        BackDialer(self.engine, how, change)

    def close(self) -> None:
        on(self.engine, lambda: self.near.close("the test ended"))
        on(self.engine, self.listener.close)
        wait_until("both ends", lambda: len(self.over) == 2)


def test_nothing_is_lost_or_reordered_while_a_relay_changes(engine: Engine, echo: str) -> None:
    ends = Ends(engine)
    sock = on(engine, lambda: ends.near.open(echo, lambda _why: None))
    sock.setblocking(True)
    sent = random.Random(3).randbytes(NUM_BYTES)
    came = bytearray()

    def read() -> None:
        while len(came) < NUM_BYTES and (data := sock.recv(1 << 16)):
            came.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    sock.sendall(sent[: NUM_BYTES // 3])
    on(engine, lambda: ends.near.ask_back(ends.listener.how))
    sock.sendall(sent[NUM_BYTES // 3 : -1])
    wait_until("the change", lambda: ends.changed)
    sock.sendall(sent[-1:])
    reader.join(60.0)
    assert bytes(came) == sent
    assert on(engine, lambda: ends.listener.how) == b"", "nothing listens any more"
    # A new stream over the connection alone.
    second = on(engine, lambda: ends.near.open(echo, lambda _why: None))
    second.setblocking(True)
    sock.close()
    second.sendall(b"again")
    assert second.recv(16) == b"again"
    second.close()
    ends.close()


def test_strangers_are_turned_away_and_the_far_end_is_let_in(engine: Engine, echo: str) -> None:
    ends = Ends(engine)
    how = on(engine, lambda: ends.listener.how)
    _, _, port = how[32:].decode().rpartition(":")
    address = ("127.0.0.1", int(port))
    for words in (b"x" * 32, how[:31] + bytes([how[31] ^ 1]), b"GET / HTTP/1.1\r\n\r\n" + b"y" * 32):
        with socket.create_connection(address) as stranger:
            stranger.sendall(words)
            assert is_closed(stranger)
    silent = [socket.create_connection(address) for _ in range(16)]
    with socket.create_connection(address) as one_more:
        assert is_closed(one_more), "more than sixteen that say nothing"
    silent.pop().close()  # it had its time, which the others still have
    on(engine, lambda: ends.near.ask_back(how))
    wait_until("the change", lambda: ends.changed)
    for one in silent:
        assert is_closed(one)
        one.close()
    sock = on(engine, lambda: ends.near.open(echo, lambda _why: None))
    sock.setblocking(True)
    sock.sendall(b"hello")
    assert sock.recv(16) == b"hello"
    sock.close()
    ends.close()


@pytest.mark.parametrize(
    "how",
    [b"", b"short", b"t" * 32, b"t" * 32 + b"nowhere", b"t" * 32 + b"tcp://127.0.0.1:1,tcp://x:1", b"\xff" * 99],
    ids=["empty", "half a token", "no address", "no such address", "refused", "no text"],
)
def test_what_leads_nowhere_changes_nothing(engine: Engine, echo: str, how: bytes) -> None:
    ends = Ends(engine, dial_back=False)
    on(engine, lambda: ends.near.ask_back(how))
    sock = on(engine, lambda: ends.near.open(echo, lambda _why: None))
    sock.setblocking(True)
    sock.sendall(b"over the pipes")
    assert sock.recv(64) == b"over the pipes"
    assert not ends.changed
    sock.close()
    ends.close()


@pytest.mark.parametrize("far", [True, False], ids=["far", "near"])
def test_a_change_to_a_connection_that_there_is_none_ends_the_relay(engine: Engine, far: bool) -> None:
    to_end, from_end = os.pipe(), os.pipe()
    over: list[str] = []
    on(engine, lambda: Relay(engine, to_end[0], from_end[1], far=far, over=over.append))
    os.write(to_end[1], (b"" if far else GREETING) + struct.pack("<BII", 7, 0, 0))
    wait_until("its end", lambda: over)
    assert over == ["not a valid frame: the other end changes to a connection that there is none"]
    os.close(to_end[1])
    os.close(from_end[0])
