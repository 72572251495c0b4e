"""Connections to silent but healthy peers, and of processes that stood still. tests/slurm/test_links.py cuts some."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from monarch_hpc.core.errors import TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.tcp.keepalive import CutDetector
from tests.system.support import parties as parties_of
from tests.system.support.parties import LIMITS, Party, parties

__all__ = ["parties"]

_CUT_S = 3.0
_PATIENCE_S = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far, _ = server.accept()
        stack.enter_context(far)
        near.setblocking(False)
        yield near, far


def watched(engine: Engine, sock: socket.socket) -> list[str]:
    """Watch a socket; return the list of reports about it."""
    errors: list[str] = []
    wires = CutDetector(engine, _CUT_S)
    begun = Flag(engine)

    def begin() -> None:
        wires.watch("it", sock, errors.append)
        begun.set()

    engine.call_soon(begin)
    assert begun.wait(_PATIENCE_S)
    return errors


@pytest.mark.slow
def test_whoever_does_not_read_for_long_is_not_cut_off(
    engine: Engine, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    errors = watched(engine, near)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += near.send(bytes(2**16))
    assert not engine.wait(lambda: bool(errors), 2.5 * _CUT_S), errors
    received = 0
    while received < sent:
        received += len(far.recv(2**20))
    assert near.send(b"x") == 1
    assert not errors


@pytest.mark.slow
def test_an_idle_connection_stays(engine: Engine, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    errors = watched(engine, near)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert not engine.wait(lambda: bool(errors), 2 * _CUT_S), errors
    near.send(b"x")
    assert far.recv(1) == b"x"


def test_other_sockets_are_left_alone(engine: Engine) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert watched(engine, near) == []
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_time_in_which_a_process_stood_still_is_not_that_of_the_peer_which_it_dials(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(LIMITS, connect_s=0.5)
    monkeypatch.setattr(parties_of, "LIMITS", limits)
    server, client = parties(), parties()
    addresses = server.node.listen(["127.0.0.1"])
    results: list[object] = []
    ended = Flag(client.engine)

    def done(result: object) -> None:
        results.append(result)
        ended.set()

    def dial() -> None:
        client.node.dial(addresses, 0, done)
        # As of an agent that was stopped, or of one on a virtual machine that was.
        client.engine.call_soon(lambda: time.sleep(2 * limits.connect_s))

    client.engine.call_soon(dial)
    assert ended.wait(_PATIENCE_S)
    assert not isinstance(results[0], TransportError), results
