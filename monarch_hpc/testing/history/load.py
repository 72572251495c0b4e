"""Random traffic of which everybody writes down what they do: senders, actors that answer, actors that send on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.context import context, deadlines_seen
from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ActorDied, CallTimeout
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.calls.stream import Stream
from monarch_hpc.testing.history.checker import (
    Began,
    Closed,
    Concluded,
    Event,
    Finished,
    Overlap,
    Sent,
    Stopping,
    decode,
    encode,
    token,
)

__all__ = [
    "PATIENCE_S",
    "Answerer",
    "Forwarder",
    "Noting",
    "RandomSender",
    "close_notes",
    "events_of",
    "hostile",
    "note",
    "process_name",
    "read_history",
]

PATIENCE_S = 60.0
"""How long a call may take before it counts as blocked; the longest wait that is meant is a tenth of that."""

_MAX_BYTES = 300_000
"""Of an argument: some travel beside the body, some fill the mailbox."""


_files: dict[str, int] = {}
"""By folder, the one file of this process: its lines are in the order of the events."""

_lock = threading.Lock()


def process_name(pid: int) -> str:
    """The name of a process of this host among the processes that write into one folder."""
    return f"{os.uname().nodename}-{pid}"


def events_of(folder: str, process: str) -> Path:
    """The file that a process writes."""
    return Path(folder) / f"{process}.events"


def note(folder: str, event: Event) -> None:
    """Write an event down, at once: what a killed process wrote stays."""
    line = encode(event)
    with _lock:
        file = _files.get(folder)
        if file is None:
            path = events_of(folder, process_name(os.getpid()))
            file = _files[folder] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        assert os.write(file, line) == len(line)


def close_notes(folder: str) -> None:
    """Nothing more is written down in this process."""
    with _lock:
        file = _files.pop(folder, None)
    if file is not None:
        os.close(file)


def read_history(folder: str) -> Iterator[Event]:
    """What all processes wrote; the events of one process are in order."""
    for path in sorted(Path(folder).glob("*.events")):
        with path.open("rb") as lines:
            yield from map(decode, lines)


class Noting(Actor):
    """Notes when its endpoints begin, and whether two of them overlap."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder = folder
        self.me = f"{name}{context().proc.rank}"
        self._inside = False

    def _begin(self, sender: str, number: int) -> None:
        if self._inside:
            note(self.folder, Overlap(self.me))
        self._inside = True
        note(self.folder, Began(self.me, sender, number))  # a system call, in which another thread would run
        self._inside = False


class Answerer(Noting):
    """Answers, in every way that an endpoint can be made."""

    def _finish(self, sender: str, number: int) -> None:
        note(self.folder, Finished(self.me, sender, number))

    @endpoint
    def plain(self, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False) -> str:
        """Answer from a function."""
        self._begin(sender, number)
        if pause_s:
            time.sleep(pause_s)
        self._finish(sender, number)
        return hostile(number) if fails else token(sender, number)

    @endpoint
    async def waiting(self, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False) -> str:
        """Answer from a coroutine."""
        return await self._wait(sender, number, pause_s, fails=fails)

    @concurrent_endpoint
    async def beside(self, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False) -> str:
        """Answer from a coroutine, beside others."""
        return await self._wait(sender, number, pause_s, fails=fails)

    @endpoint(explicit_response_port=True)
    def later(
        self, port: ResponsePort, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False
    ) -> None:
        """Answer by the port, after the endpoint has returned."""
        self._begin(sender, number)
        self._finish(sender, number)
        if fails:
            port.exception(_error(number))
        elif pause_s:
            threading.Timer(pause_s, port.send, (token(sender, number),)).start()
        else:
            port.send(token(sender, number))

    async def _wait(self, sender: str, number: int, pause_s: float, *, fails: bool) -> str:
        self._begin(sender, number)
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._finish(sender, number)
        return hostile(number) if fails else token(sender, number)


class _Silent:
    def __repr__(self) -> str:
        raise KeyboardInterrupt


def _unspeakable(cls: type[BaseException]) -> BaseException:
    """An exception that does not say what it is about."""

    def refuse(_self: BaseException) -> str:
        raise SystemExit(7)

    error: BaseException = type(cls.__name__, (cls,), {"__str__": refuse})()
    return error


def _error(number: int) -> BaseException:
    """Exceptions of all kinds, one after the other."""
    kinds: list[Callable[[], BaseException]] = [
        lambda: ValueError(number),
        lambda: _unspeakable(ValueError),
        lambda: ValueError(threading.Lock()),
        lambda: ValueError("x" * _MAX_BYTES),
        asyncio.CancelledError,
    ]
    return kinds[number % len(kinds)]()


def hostile(number: int) -> str:
    """Fail: raise, or return what cannot be sent."""
    if number % 3:
        raise _error(number)
    result: Any = {_Silent(): threading.Lock()}
    return cast(str, result)


@dataclass
class _Open:
    """A call whose outcome was not read yet."""

    sent: Sent
    future: Any

    @property
    def futures(self) -> list[Any]:
        """All that have to be done."""
        return list(self.future) if isinstance(self.future, Stream) else [self.future]

    def outcomes(self) -> dict[str, str]:
        """What came of it, once all are done."""
        names = self.sent.targets
        if isinstance(self.future, Stream):
            return {names[point.rank]: _words(value) for point, value in self.future.items()}
        error = self.future.exception(0.0)
        if error is not None:
            return {"*": _words(error)}
        value = self.future.result()
        if isinstance(value, str):
            return {"*": _words(value)}
        return {names[point.rank]: _words(answer) for point, answer in value.items()}


class RandomSender:
    """Sends at random to some meshes of nodes, and writes down what it does.

    Args:
        meshes: by the name that their nodes have.
        relays: sends through these too.
    """

    def __init__(
        self, folder: str, name: str, meshes: dict[str, ActorMesh[Any]], relays: ActorMesh[Forwarder] | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.meshes = meshes
        self.relays = relays
        self.number = 0
        self.open: list[_Open] = []
        self.through: list[Any] = []

    def step(self, dice: random.Random) -> None:
        """Do one thing, without waiting for anything but credit."""
        what = dice.random()
        if self.open and what < 0.06:
            self.cancel(dice.choice(self.open))
        elif self.relays is not None and what < 0.12:
            relay = self._cut(self.relays, dice, single=True)[0]
            through = relay.forward if dice.random() < 0.5 else relay.forward_waiting
            if dice.random() < 0.2:
                through = through.options(timeout=dice.uniform(0.001, 0.2))
            self.through.append(through.call_one(dice.random(), dice.randrange(1, 12)))
        else:
            self.send(dice)

    def send(self, dice: random.Random, *, last: bool = False) -> None:
        """Send one message; *last* to all nodes, and without a limit."""
        for name in self.meshes if last else [dice.choice(list(self.meshes))]:
            self._send_to(name, self.meshes[name], dice, last=last)

    def _send_to(self, name: str, mesh: ActorMesh[Answerer], dice: random.Random, *, last: bool) -> None:
        way = "call" if last else dice.choices(["one", "call", "cast", "choose", "stream"], [8, 3, 5, 1, 1])[0]
        view, ranks = (mesh, list(range(4))) if last else self._cut(mesh, dice, single=way == "one")
        names = [f"{name}{rank}" for rank in ranks]
        kind = "plain" if last else dice.choices(["plain", "waiting", "beside", "later"], [3, 1, 1, 1])[0]
        inherited = deadlines_seen() and context().deadline_left_s is not None
        timeout_s = None if last or dice.random() > 0.1 else dice.uniform(0.0005, 0.05)
        fails = way != "cast" and not last and dice.random() < 0.05
        self.number += 1
        sent = Sent(
            self.name,
            self.number,
            names,
            replies=way != "cast",
            chooses=way == "choose",
            limited=timeout_s is not None or inherited,
            fails=fails,
            beside=kind == "beside",
            after=kind == "later",
        )
        data = bytes(0 if last or dice.random() < 0.7 else dice.randrange(_MAX_BYTES))
        pause_s = 0.0 if last or dice.random() < 0.8 else dice.uniform(0.0, 0.01)
        note(self.folder, sent)
        one = way in ("one", "choose")
        called = getattr(view, kind).options(timeout=timeout_s, on_error="raise" if one else "collect")
        given = (self.name, self.number, data, pause_s)
        if way == "cast":
            try:
                called.broadcast(*given)
            except CallTimeout:
                self._end(sent, {"*": "CallTimeout"})
            return
        ways = {"one": called.call_one, "call": called.call, "choose": called.choose, "stream": called.stream}
        future = ways[way](*given, fails=True) if fails else ways[way](*given)
        self.open.append(_Open(sent, future))

    def _cut(self, mesh: ActorMesh[Any], dice: random.Random, *, single: bool) -> tuple[Any, list[int]]:
        """A view of a mesh of two hosts with two GPUs each, and its ranks."""
        host, gpu = dice.randrange(2), dice.randrange(2)
        cut = "both" if single else dice.choice(["both", "host", "gpu", "all"])
        if cut == "both":
            return mesh.slice(hosts=host, gpus=gpu), [2 * host + gpu]
        if cut == "host":
            return mesh.slice(hosts=host), [2 * host, 2 * host + 1]
        if cut == "gpu":
            return mesh.slice(gpus=gpu), [gpu, 2 + gpu]
        return mesh, [0, 1, 2, 3]

    def stop(self, name: str, rank: int) -> None:
        """Stop the actor of one rank, after all that was sent to it."""
        self.number += 1
        reason = f"{self.name} wants it {self.number}"
        note(self.folder, Stopping(self.name, self.number, [f"{name}{rank}"], reason))
        self.through.append(self.meshes[name].slice(hosts=rank // 2, gpus=rank % 2).stop(reason))

    # ---- outcomes ----

    def cancel(self, call: _Open) -> None:
        """Give a call up, if it is not answered."""
        if not isinstance(call.future, Stream) and call.future.cancel():
            self.open.remove(call)
            self._end(call.sent, {}, cancelled=True)

    def read_some(self, num: int) -> None:
        """Wait for the oldest calls, until so many are left."""
        while len(self.open) > num:
            call = self.open.pop(0)
            for future in call.futures:
                future.exception(PATIENCE_S)
            self._end(call.sent, call.outcomes())

    async def read_all(self) -> None:
        """Wait for all calls, in a coroutine."""
        while self.open:
            call = self.open[0]
            for future in call.futures:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(future, PATIENCE_S)
            self.open.remove(call)
            if all(future.done() for future in call.futures):  # else it is found to be blocked
                self._end(call.sent, call.outcomes())

    def _end(self, sent: Sent, outcomes: dict[str, str], *, cancelled: bool = False) -> None:
        note(self.folder, Concluded(sent.sender, sent.number, outcomes, cancelled))

    def close(self) -> None:
        """Send a last message to all, wait for everything, and say so."""
        for through in self.through:
            through.exception(PATIENCE_S)  # TimeoutError if it is blocked
        self.send(random.Random(0), last=True)
        self.read_some(0)
        note(self.folder, Closed(self.name))


def _words(value: object) -> str:
    if isinstance(value, ActorDied):
        return f"{type(value).__name__}: {value.cause.splitlines()[0]}"
    return f"={value}" if isinstance(value, str) else type(value).__name__


class Forwarder(Actor):
    """Sends on, from functions and from coroutines."""

    def __init__(self, folder: str, meshes: dict[str, ActorMesh[Any]]) -> None:
        self.sender = RandomSender(folder, f"relay{context().proc.rank}", meshes)

    @endpoint
    def forward(self, seed: float, num: int) -> None:
        """Send *num* messages from a function."""
        dice = random.Random(seed)
        for _ in range(num):
            self.sender.step(dice)
        self.sender.read_some(dice.randrange(4))

    @endpoint
    async def forward_waiting(self, seed: float, num: int) -> None:
        """Send *num* messages from a coroutine."""
        dice = random.Random(seed)
        for _ in range(num):
            self.sender.step(dice)
            if dice.random() < 0.3:
                await asyncio.sleep(0)
        await self.sender.read_all()

    @endpoint
    def close(self) -> None:
        """Send the last messages, and wait for all answers."""
        self.sender.close()
