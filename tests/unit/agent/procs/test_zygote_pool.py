"""A zygote's orders: their sequence, what is dropped, and how the end of the zygote is reported."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.procs.zygote_launch import StartingZygote, ZygoteSettings
from monarch_hpc.agent.procs.zygote_order import FDS_PER_PROC, receive, render
from monarch_hpc.agent.procs.zygote_pool import ForkProblem, Spawned, ZygotePool
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.start import ProcOrder, ProcStart, parse_order
from tests.unit.agent.test_start import START

_PID = 7
"""The process id of the zygote, whose side of the socket the test plays."""


class Zygote:
    """The far end of a pool's first zygote; engine and reaper of the pool at once."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.on_ready: Callable[[int], None] | None = None
        self.ended: Callable[[Exit], None] | None = None
        self.pool = ZygotePool(cast(Engine, self), cast(Reaper, self), ZygoteSettings("0" * 32, 0, "m:f", {}))
        self.pool.warm(StartingZygote(_PID, ours, -1), [])
        self.hello, _ = self.take()
        self.outcomes: list[tuple[str, Spawned]] = []

    def watch(self, key: int, callback: Callable[..., None], *, write: bool = False) -> None:
        """Keep the callback of the pool's socket, or of its process's end."""
        if key == _PID:
            self.ended = callback
        else:
            self.on_ready = callback

    def unwatch(self, _fd: int) -> None:
        self.on_ready = None

    def take(self) -> tuple[bytes, list[int]]:
        message = receive(self.sock)
        assert message is not None
        return message

    def taken(self) -> list[str]:
        """Run and rank of the orders that have arrived."""
        found = []
        while select.select([self.sock], [], [], 0)[0]:
            data, fds = self.take()
            for fd in fds:
                os.close(fd)
            start = parse_order(data).starts[0]
            found.append(f"{start.run}{start.rank}")
        return found

    def answer(self, document: dict[str, object]) -> None:
        self.sock.sendall(render(document))
        assert self.on_ready is not None
        self.on_ready(select.EPOLLIN)

    def order(self, name: str, is_wanted: Callable[[], bool] = lambda: True) -> None:
        order = ProcOrder([start_of(name)], {}, [], "/", 0o22, "")
        fds = [0] * FDS_PER_PROC
        self.pool.spawn("", [], order, fds, lambda spawned: self.outcomes.append((name, spawned)), is_wanted)

    def end(self, how: Exit) -> None:
        assert self.ended is not None
        self.sock.close()
        self.ended(how)


def start_of(name: str) -> ProcStart:
    return replace(START, run=name[0], rank=int(name[1:]))


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    if zygote.sock.fileno() >= 0:
        zygote.end(Exit(0, None))


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_runs_take_turns_and_each_keeps_its_order(zygote: Zygote) -> None:
    for name in ("a0", "a1", "a2", "a3", "b0", "b1"):
        zygote.order(name)
    assert zygote.taken() == ["a0", "a1"]  # two in flight, so that the zygote is never idle
    sequence = []
    for pid in range(6):
        zygote.answer({"pids": [pid]})
        sequence += zygote.taken()
    assert sequence == ["a2", "b0", "a3", "b1"]
    assert zygote.outcomes == [(name, [pid]) for pid, name in enumerate(["a0", "a1", *sequence])]


def test_an_order_that_is_not_wanted_when_its_turn_comes_is_dropped(zygote: Zygote) -> None:
    before, wanted = num_fds(), True
    for name in ("a0", "a1", "a2", "a3"):
        zygote.order(name, lambda name=name: wanted or name != "a2")  # type: ignore[misc]
    wanted = False
    assert zygote.taken() == ["a0", "a1"]
    zygote.answer({"pids": [1]})
    zygote.answer({"error": "fork: Cannot allocate memory"})
    assert zygote.taken() == ["a3"] and num_fds() == before
    assert zygote.outcomes == [("a0", [1]), ("a1", ForkProblem("fork: Cannot allocate memory", []))]


def test_the_end_fails_all_orders_with_the_reason_that_the_zygote_sent(zygote: Zygote) -> None:
    before = num_fds() - 2  # the socket's two ends
    for name in ("a0", "a1", "a2"):
        zygote.order(name)
    zygote.taken()
    zygote.sock.sendall(render({"failed": ["ModuleNotFoundError: no module 'x'"]}))
    zygote.end(Exit(1, None))
    problem = ForkProblem("a module to preload cannot be imported", ["ModuleNotFoundError: no module 'x'"])
    assert zygote.outcomes == [(name, problem) for name in ("a0", "a1", "a2")]
    assert num_fds() == before


def test_an_end_without_a_reason_is_reported_by_how_it_ended(zygote: Zygote) -> None:
    zygote.order("a0")
    zygote.end(Exit(None, 9))
    ((_, problem),) = zygote.outcomes
    assert isinstance(problem, ForkProblem)
    assert problem.cause == f"the zygote, which procs are forked from, ended: {Exit(None, 9)}"
