"""Finalizers and signal handlers that call actors: at whatever line of a call they run, all calls are answered.

Python runs them between any two instructions, on the thread that makes the call, which may hold a lock then. A trace
function stands for them here: it makes calls at each line once.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, Channel, Future, Port, endpoint
from monarch_hpc.config.load import load
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_PACKAGE = monarch_hpc.__path__[0]


class Counter(Actor):
    """Counts calls."""

    def __init__(self) -> None:
        self.num = 0

    @endpoint
    def count(self) -> int:
        self.num += 1
        return self.num

    @endpoint
    def send(self, port: Port[str]) -> None:
        port.send("sent")


@pytest.fixture(scope="module")
def counters(request: pytest.FixtureRequest) -> Iterator[ActorMesh[Counter]]:
    loaded = load().config
    config = replace(
        loaded,
        fabric=replace(loaded.fabric, order=("ucx", "tcp") if request.param == "ucx" else ("tcp",)),
        transport=replace(loaded.transport, cast_direct=1),  # calls of several go through the agents
    )
    with controlled(config) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        yield procs.spawn("counter", Counter)


class Intruder:
    """Makes calls in the middle of another one, at a line of our code at which it has not been yet."""

    def __init__(self, counters: ActorMesh[Counter]) -> None:
        self.calls: list[Future[Any]] = []
        self._counters = counters
        self._one = counters.slice(hosts=0)
        self._seen: set[tuple[str, int]] = set()
        self._waits = True

    def let_run(self, action: Callable[[], object]) -> bool:
        """Run *action* and intrude once; False if there was no new line."""
        self._waits = True
        sys.settrace(self._trace)
        try:
            action()
        finally:
            sys.settrace(None)
        return not self._waits

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not self._waits:
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in self._seen:
            self._seen.add(place)
            self._waits = False
            sys.settrace(None)
            self.calls += self._one.count.call_one(), self._counters.count.call()
            self._one.count.broadcast()
        return self._trace if place[0].startswith(_PACKAGE) else None


def received(one: ActorMesh[Counter]) -> str:
    port, receiver = Channel[str].open()
    one.send.broadcast(port)
    text: str = receiver.recv().get(_PATIENCE_S)
    return text


async def awaited(one: ActorMesh[Counter]) -> int:
    num: int = await one.count.call_one()
    return num


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counters", "action"),
    [
        ("tcp", lambda counters: counters.count.options(timeout=_PATIENCE_S).call().get()),
        ("tcp", lambda counters: received(counters.slice(hosts=0))),
        ("tcp", lambda counters: asyncio.run(awaited(counters.slice(hosts=0)))),
        ("ucx", lambda counters: counters.slice(hosts=0).count.call_one().get(_PATIENCE_S)),
    ],
    ids=["tcp-several", "tcp-port", "tcp-await", "ucx-one"],
    indirect=["counters"],
)
def test_calls_in_the_middle_of_a_call_are_answered(
    counters: ActorMesh[Counter], action: Callable[[ActorMesh[Counter]], object]
) -> None:
    intruder = Intruder(counters)
    over: list[int] = []

    def run() -> None:
        for number in itertools.count():
            if not intruder.let_run(lambda: action(counters)):
                over.append(number)
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * _PATIENCE_S)
    assert over and over[0] > 50, f"it hangs, after {len(intruder.calls) // 2} intrusions"
    for call in intruder.calls:
        call.get(_PATIENCE_S)
