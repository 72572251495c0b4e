"""Actors of one proc do not wait for each other, whatever their code does; idle ones need no thread."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, HostMesh, ProcMesh, concurrent_endpoint, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_KEEP = 4
"""Threads for idle actors in the procs of this module; few, so that a test needs few actors to exceed them."""

_word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


def hang(fifo: str) -> None:
    """Block this thread in C until `release`."""
    with open(fifo):
        pass


def release(fifo: str) -> None:
    """Release a thread that hangs there."""
    with open(fifo, "w"):
        pass


class Waiting(Actor):
    """An actor with coroutines only."""

    def __init__(self, fifo: str = "") -> None:
        if fifo:
            hang(fifo)
        self.ticks = 0

    @endpoint
    async def alive(self) -> bool:
        return True

    @endpoint
    async def hang(self, fifo: str) -> None:
        hang(fifo)

    @endpoint
    async def ask(self, other: ActorMesh[Blocking]) -> int:
        return int(await other.thread.call_one())

    @concurrent_endpoint
    async def tick(self, num: int) -> int:
        for _ in range(num):
            await asyncio.sleep(0.001)
            self.ticks += 1
        return self.ticks

    @endpoint
    async def take_signals(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)

    @endpoint
    async def serve(self) -> str:
        """Serve one client on a socket; return the path."""
        path = f"/tmp/monarch-hpc-test-{os.getpid()}-{id(self)}"
        self.server = await asyncio.start_unix_server(self._on_client, path)
        return path

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async def __cleanup__(self, _error: BaseException | None) -> None:
        if hasattr(self, "server"):
            self.server.close()

    def __supervise__(self, _failure: object) -> bool:
        return True

    @endpoint
    async def loop_in_thread(self) -> bool:
        """Let another thread call a coroutine of this actor's loop."""
        loop = asyncio.get_running_loop()

        async def which() -> int:
            return threading.get_ident()

        def ask() -> int:
            return asyncio.run_coroutine_threadsafe(which(), loop).result(_PATIENCE_S)

        return await asyncio.to_thread(ask) == threading.get_ident()


class Blocking(Actor):
    """An actor with functions only."""

    def __init__(self) -> None:
        self.born = threading.get_ident()
        _word.set(f"of {id(self)}")

    @endpoint
    def thread(self) -> int:
        return threading.get_ident()

    @endpoint
    def hang(self, fifo: str) -> None:
        hang(fifo)

    @endpoint
    def at_home(self) -> tuple[bool, bool]:
        """Whether this is the constructor's thread, and whether its context variables are here."""
        return threading.get_ident() == self.born, _word.get() == f"of {id(self)}"

    @endpoint
    def num_threads(self) -> int:
        return len(os.listdir("/proc/self/task"))

    @endpoint
    def meet(self, num: int) -> int:
        """Block until *num* actors of this proc are here."""
        with _meeting:
            _here.append(self)
            _meeting.notify_all()
            assert _meeting.wait_for(lambda: len(_here) >= num, _PATIENCE_S), len(_here)
        return len(_here)


_meeting = threading.Condition()
_here: list[Blocking] = []


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.actor_threads": _KEEP}).config, num_hosts=1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


@pytest.mark.parametrize("cls", [Waiting, Blocking])
def test_code_that_blocks_delays_no_other_actor(proc: ProcMesh, fifo: str, cls: type[Waiting] | type[Blocking]) -> None:
    hanging, free = proc.spawn("hanging", cls), proc.spawn("free", Waiting)
    hung = hanging.hang.call_one(fifo)
    assert free.alive.call_one().get(_PATIENCE_S)
    assert proc.spawn("late", Waiting).alive.call_one().get(_PATIENCE_S)
    assert not hung.done()
    release(fifo)
    hung.get(_PATIENCE_S)


def test_a_constructor_that_blocks_delays_no_other_actor(proc: ProcMesh, fifo: str) -> None:
    hanging = proc.spawn("hanging", Waiting, fifo)
    assert proc.spawn("late", Waiting).alive.call_one().get(_PATIENCE_S)
    release(fifo)
    assert hanging.alive.call_one().get(_PATIENCE_S)


def test_actors_of_the_program_do_not_delay_each_other_either(proc: ProcMesh, fifo: str) -> None:
    hanging, free = (monarch_hpc.this_proc().spawn(name, Waiting) for name in ("hanging", "free"))
    hung = hanging.hang.call_one(fifo)
    assert free.alive.call_one().get(_PATIENCE_S)
    release(fifo)
    hung.get(_PATIENCE_S)
    for actor in (hanging, free):
        actor.stop().get(_PATIENCE_S)


def test_a_few_actors_keep_their_threads_and_of_many_the_idle_ones_have_none(hosts: HostMesh) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        few = [procs.spawn(f"few {number}", Blocking) for number in range(_KEEP)]
        for _ in range(3):
            assert [actor.at_home.call_one().get(_PATIENCE_S) for actor in few] == [(True, True)] * _KEEP
        before = few[0].num_threads.call_one().get(_PATIENCE_S)
        many = [procs.spawn(f"many {number}", Blocking) for number in range(50)]
        for _ in range(2):
            assert all(actor.at_home.call_one().get(_PATIENCE_S)[1] for actor in [*few, *many])
        wait_until(
            "the end of threads",
            lambda: few[0].num_threads.call_one().get(_PATIENCE_S),
            accept=lambda num: num <= before + 2,
        )


def test_many_that_block_at_once_all_run_and_the_threads_are_given_back(hosts: HostMesh) -> None:
    num = 150
    with hosts.slice(hosts=0).spawn_procs() as procs:
        actors = [procs.spawn(f"guest {number}", Blocking) for number in range(num)]
        meetings = [actor.meet.call_one(num) for actor in actors]
        assert {meeting.get(_PATIENCE_S) for meeting in meetings} == {num}
        wait_until(
            "the end of threads", lambda: actors[0].num_threads.call_one().get(_PATIENCE_S), accept=lambda num: num < 20
        )


def test_timers_and_descriptors_of_a_loop_need_no_thread_of_its_actor(hosts: HostMesh) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        server, ticker = procs.spawn("server", Waiting), procs.spawn("ticker", Waiting)
        path = server.serve.call_one().get(_PATIENCE_S)
        ticking = ticker.tick.call_one(200)
        others = [procs.spawn(f"other {number}", Blocking) for number in range(3 * _KEEP)]
        for _ in range(5):
            for other in others:  # they take all threads
                other.thread.call_one().get(_PATIENCE_S)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_PATIENCE_S)
            client.connect(path)
            client.sendall(b"hello\n")
            assert client.recv(100) == b"HELLO\n"
        assert ticking.get(_PATIENCE_S) == 200
        server.stop().get(_PATIENCE_S)
        Path(path).unlink(missing_ok=True)  # servers remove it themselves from Python 3.13 on


def test_a_coroutine_may_call_a_neighbour_and_other_threads_its_loop(proc: ProcMesh) -> None:
    waiting, blocking = proc.spawn("waiting", Waiting), proc.spawn("blocking", Blocking)
    answer = waiting.ask.call_one(blocking).get(_PATIENCE_S)
    assert answer == blocking.thread.call_one().get(_PATIENCE_S)
    assert waiting.loop_in_thread.call_one().get(_PATIENCE_S)


def test_a_waiting_coroutine_lets_others_of_its_actor_run(proc: ProcMesh) -> None:
    actor = proc.spawn("waiting", Waiting)
    ticking = [actor.tick.call_one(20) for _ in range(3)]
    assert actor.alive.call_one().get(_PATIENCE_S)
    assert max(future.get(_PATIENCE_S) for future in ticking) == 60


def test_a_loop_without_signals_says_so_as_libraries_expect(proc: ProcMesh) -> None:
    with pytest.raises(NotImplementedError, match="takes no signals"):
        proc.spawn("waiting", Waiting).take_signals.call_one().get(_PATIENCE_S)
