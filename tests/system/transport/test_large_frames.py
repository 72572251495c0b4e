"""A large frame over a socket whose peer dies or stops in the middle of it: an error, and never a part of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from monarch_hpc.core.errors import ChannelClosed, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.arrival import SPARES, allocate_all
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.secure import records
from monarch_hpc.wire.frames import Frame, FrameHead, Kind
from tests.system.support.parties import PATIENCE_S, Party, parties

__all__ = ["parties"]

_BYTES = 256 << 20
"""More than the queues of two sockets hold."""


@pytest.fixture(autouse=True)
def no_spares() -> Iterator[None]:
    """Keep memory of no other test, and none for others."""
    SPARES.clear()
    yield
    SPARES.clear()


@pytest.fixture
def children() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Starts functions in processes of their own, which are killed at the end."""
    pids: list[int] = []

    def start(run: Callable[[], None]) -> int:
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                run()
            os._exit(0)
        pids.append(pid)
        return pid

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _at_its_beginning(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Call *then* in this process when memory is found for the first large frame that arrives."""

    def find(head: FrameHead, num_bytes: int) -> object:
        monkeypatch.setattr(records, "allocate_all", allocate_all)
        then()
        return allocate_all(head, num_bytes)

    monkeypatch.setattr(records, "allocate_all", find)


def _array(fill: int) -> Frame:
    return Frame(Kind.RESULT, fill, 0, b"body", [np.full(_BYTES, fill, np.uint8).data])


def _send(channel: object, frame: Frame) -> tuple[threading.Thread, list[TransportError]]:
    failures: list[TransportError] = []

    def send() -> None:
        try:
            channel.send(frame)  # type: ignore[attr-defined]
        except TransportError as error:
            failures.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    return thread, failures


def _serve(write_fd: int, prepare: Callable[[], None]) -> None:
    prepare()
    server = Party()
    os.write(write_fd, server.node.listen(["127.0.0.1"])[0].encode())
    Flag(server.engine).wait(PATIENCE_S)


def test_a_sender_that_is_killed_in_the_middle_leaves_no_part_of_its_frame(
    parties: Callable[..., Party], children: Callable[[Callable[[], None]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = parties()
    address = server.node.listen(["127.0.0.1"])[0]

    def pour() -> None:
        client = Party(role=Role.CONTROLLER)
        client.node.connect([address]).send(_array(1))

    pids: list[int] = []
    _at_its_beginning(monkeypatch, lambda: os.kill(pids[0], signal.SIGKILL))
    pids.append(children(pour))
    server.until(lambda: bool(server.lost))
    assert not server.frames and isinstance(server.lost[0], PeerLost)
    assert "the connection ended" in str(server.lost[0]) or "reset" in str(server.lost[0])
    # Its memory, part of which was filled, takes the next frame, although the channel is still known.
    assert SPARES.num_bytes == _BYTES and server.opened
    parties(role=Role.CONTROLLER).node.connect([address]).send(_array(2))
    server.until(lambda: bool(server.frames))
    arrived = np.frombuffer(server.frames[0].buffers[0], np.uint8)
    assert len(arrived) == _BYTES and (arrived == 2).all()
    assert SPARES.num_bytes == _BYTES


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_receiver_that_ends_or_stops_in_the_middle_holds_no_sender(
    parties: Callable[..., Party],
    children: Callable[[Callable[[], None]], int],
    monkeypatch: pytest.MonkeyPatch,
    end: signal.Signals,
) -> None:
    read_fd, write_fd = os.pipe()
    pid = children(lambda: _serve(write_fd, lambda: _at_its_beginning(monkeypatch, lambda: os.kill(os.getpid(), end))))
    with open(read_fd, "rb", buffering=0) as told:
        address = told.read(100).decode()
    os.close(write_fd)
    client = parties(role=Role.CONTROLLER)
    channel = client.node.connect([address])
    frame = _array(3)
    thread, failures = _send(channel, frame)
    if end is signal.SIGSTOP:
        wait_until("the receiver to stop", lambda: _state(pid) == "T", PATIENCE_S)
        wait_until("the sender to wait", lambda: 0 < channel.queued_bytes < 2 * _BYTES, PATIENCE_S)
        channel.close("the sender has waited enough")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(one) for one in failures] == [PeerLost if end is signal.SIGKILL else ChannelClosed]
    frame.buffers[0][:] = bytes(_BYTES)  # type: ignore[index]
    client.until(lambda: bool(client.lost))
    assert not client.node.channels


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(") ")[2][0]


def test_memory_that_somebody_holds_takes_no_later_frame(parties: Callable[..., Party]) -> None:
    """A slice of an array is enough; when it is let go, the next frame comes into its place."""
    server, client = parties(), parties(role=Role.CONTROLLER)
    channel = client.node.connect(server.node.listen(["127.0.0.1"]))

    def receive(fill: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        channel.send(Frame(Kind.RESULT, fill, 0, b"", [np.full(8 << 20, fill, np.uint8).data]))
        server.until(lambda: bool(server.frames))
        return np.frombuffer(server.frames.pop().buffers[0], np.uint8)

    first = receive(1)
    address = first.ctypes.data
    part = first[5:7]
    del first
    second = receive(2)
    assert second.ctypes.data != address and (second == 2).all() and (part == 1).all()
    del part
    third = receive(3)
    assert third.ctypes.data == address and (third == 3).all() and (second == 2).all()
