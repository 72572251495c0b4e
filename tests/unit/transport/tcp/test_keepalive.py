"""The verdict on a connection, from what the kernel reports about it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import cast

import pytest

from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.transport.tcp.keepalive import CutDetector

_CUT_S = 15.0
_PERIOD_S = 3


class Clock:
    """An engine's timers, which fire when the test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Timer]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(delay_s, callback)
        self.timers.append((delay_s, timer))
        return timer

    def tick(self) -> None:
        """Let the period pass."""
        ((delay_s, timer),), self.timers = self.timers, []
        assert delay_s == _PERIOD_S
        timer.fire()


class Connection:
    """A socket with the kernel's report on it."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        self.family = family
        self.options: dict[tuple[int, int], int] = {}
        self.report(0, 0, 0, 0)
        self.closed = False

    def report(self, num_probes: int, num_unacknowledged: int, sent_s: float, received_s: float) -> None:
        """Set what the kernel reports, with ages in seconds."""
        info = bytearray(232)
        info[3] = num_probes
        struct.pack_into("@I", info, 24, num_unacknowledged)
        struct.pack_into("@I", info, 44, int(sent_s * 1000))
        struct.pack_into("@I", info, 56, int(received_s * 1000))
        self.info = bytes(info)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[level, option] = value

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        if self.closed:
            raise OSError("closed")
        return self.info[:size]


class Bench:
    """A detector with one watched connection."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        self.clock, self.connection = Clock(), Connection(family)
        self.reasons: list[str] = []
        self.detector = CutDetector(cast(Engine, self.clock), _CUT_S)
        self.detector.watch("it", cast(socket.socket, self.connection), self.reasons.append)


def test_the_kernel_probes_an_idle_connection_five_times_until_it_is_cut() -> None:
    options = Bench().connection.options
    assert options == {
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): _PERIOD_S,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): _PERIOD_S,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    }


def test_data_that_nobody_acknowledges_cuts_at_the_second_check() -> None:
    bench = Bench()
    bench.connection.report(0, 3, sent_s=0.1, received_s=12.5)
    bench.clock.tick()
    assert bench.reasons == [], "an answer may be in flight"
    bench.clock.tick()
    assert bench.reasons == ["its machine has not acknowledged anything for 12.5 s: the network between is cut"]


@pytest.mark.parametrize(
    "report",
    [
        pytest.param((0, 0, 0.1, 60.0), id="nothing in flight"),
        pytest.param((0, 3, 13.0, 12.5), id="acknowledged since it was sent"),
        pytest.param((0, 3, 0.1, 11.9), id="not silent for long enough"),
        pytest.param((1, 0, 0.1, 60.0), id="one probe to a receiver that does not read"),
    ],
)
def test_what_owes_no_answer_is_not_cut(report: tuple[int, int, float, float]) -> None:
    bench = Bench()
    bench.connection.report(*report)
    for _ in range(4):
        bench.clock.tick()
    assert bench.reasons == []


def test_probes_without_an_answer_cut() -> None:
    bench = Bench()
    bench.connection.report(2, 0, sent_s=0.1, received_s=13.0)
    bench.clock.tick()
    bench.clock.tick()
    assert len(bench.reasons) == 1


def test_an_answer_between_two_checks_acquits() -> None:
    bench = Bench()
    for received_s in (13.0, 0.0, 13.0):
        bench.connection.report(0, 3 if received_s else 0, sent_s=0.1, received_s=received_s)
        bench.clock.tick()
    assert bench.reasons == []


def test_a_socket_that_is_closing_is_left_to_its_reader() -> None:
    bench = Bench()
    bench.connection.closed = True
    bench.clock.tick()
    assert bench.reasons == [] and len(bench.clock.timers) == 1


def test_without_connections_there_is_no_timer() -> None:
    bench = Bench()
    bench.detector.forget("it")
    bench.detector.forget("it")
    bench.clock.tick()
    assert bench.clock.timers == []
    bench.detector.watch("it", cast(socket.socket, bench.connection), bench.reasons.append)
    assert len(bench.clock.timers) == 1
    bench.detector.close()
    bench.clock.tick()
    assert bench.clock.timers == []


def test_a_relays_socket_is_not_watched() -> None:
    bench = Bench(socket.AF_UNIX)
    assert bench.connection.options == {} and bench.clock.timers == []
