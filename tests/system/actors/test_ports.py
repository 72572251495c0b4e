"""Ports: values that actors send outside of calls, in order, bounded, and without loss."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, Channel, Port, PortClosed, PortReceiver, ProcMesh, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_SOON_S = 0.05
_WINDOW_BYTES = 32 * 2**20


class Sender(Actor):
    """Sends given values to given ports."""

    def __init__(self) -> None:
        self.sent = 0
        self.receiver: PortReceiver[int] | None = None

    @endpoint
    def count(self, port: Port[int], num: int) -> None:
        for number in range(num):
            port.send(number)
            self.sent = number + 1

    @endpoint
    async def count_from_a_coroutine(self, port: Port[int], num: int) -> None:
        for number in range(num):
            port.send(number)

    @endpoint
    def count_in_background(self, port: Port[int], num: int) -> None:
        def count() -> None:
            for number in range(num):
                try:
                    port.send(number)
                except PortClosed:
                    break
                self.sent = number + 1
            else:
                return
            self.sent = -1

        threading.Thread(target=count, daemon=True).start()

    @endpoint
    def progress(self) -> int:
        return self.sent

    @endpoint
    def send(self, port: Port[object], value: object) -> None:
        port.send(value)

    @endpoint
    def fail(self, port: Port[int]) -> None:
        port.exception(KeyError("from afar"))

    @endpoint
    def open(self) -> Port[int]:
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def read(self, num: int) -> list[int]:
        assert self.receiver is not None
        return [self.receiver.recv().get(_PATIENCE_S) for _ in range(num)]

    @endpoint
    async def read_in_a_coroutine(self, num: int) -> list[int]:
        assert self.receiver is not None
        return [await self.receiver.recv() for _ in range(num)]

    @endpoint
    def leave(self) -> None:
        os._exit(3)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    loaded = load().config
    config = replace(loaded, transport=replace(loaded.transport, mailbox_bytes=_WINDOW_BYTES))
    with controlled(config) as hosts:
        procs = hosts.spawn_procs(per_host={"gpus": 1})
        settle(procs)
        yield procs


@pytest.fixture
def senders(procs: ProcMesh) -> Iterator[ActorMesh[Sender]]:
    mesh = procs.spawn("sender", Sender)
    mesh.progress.call().get(_PATIENCE_S)
    yield mesh
    mesh.stop()


@pytest.fixture
def sender(senders: ActorMesh[Sender]) -> ActorMesh[Sender]:
    return senders.slice(hosts=0, gpus=0)


def test_messages_of_a_sender_arrive_in_order(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()
    sender.count.broadcast(port, 1000)
    assert [receiver.recv().get(_PATIENCE_S) for _ in range(1000)] == list(range(1000))
    sender.count.broadcast(port, 5)
    assert list(itertools.islice(receiver, 5)) == list(range(5))
    port.send("from here")
    assert receiver.recv().get(_PATIENCE_S) == "from here"


def send_until_refused(port: Port[int]) -> None:
    for _ in range(10):
        port.send(1)


def test_arrays_and_errors_travel_too(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()
    array = np.arange(100_000.0)
    sender.send.broadcast(port, array)
    sender.fail.broadcast(port)
    sender.send.broadcast(port, KeyError("a value"))
    received = receiver.recv().get(_PATIENCE_S)
    np.testing.assert_array_equal(received, array)
    assert received.flags.writeable
    failing = receiver.recv()
    for _ in range(2):
        with pytest.raises(KeyError, match="from afar"):
            failing.get(_PATIENCE_S)
    assert isinstance(receiver.recv().get(_PATIENCE_S), KeyError)
    with pytest.raises(TypeError, match="pickle"):
        port.send(threading.Lock())


def test_ranked_messages_say_who_sent_them(senders: ActorMesh[Sender]) -> None:
    _, receiver = Channel.open()
    port, ranked = Channel.open_ranked()
    senders.send.call(port, "x").get(_PATIENCE_S)
    senders.slice(hosts=1).send.call(port, "y").get(_PATIENCE_S)
    seen = [ranked.recv().get(_PATIENCE_S) for _ in range(3)]
    assert sorted(seen) == [(0, "x"), (0, "y"), (1, "x")]  # ranks in the mesh that was called
    port, receiver = Channel.open()
    port.send("z")
    assert receiver.ranked().recv().get(_PATIENCE_S) == (0, "z")


def test_a_message_is_taken_when_it_is_looked_at(senders: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()
    first, second, third = receiver.recv(), receiver.recv(), receiver.recv()
    assert not first.done() and not second.done()
    with pytest.raises(TimeoutError, match=r"no answer in 0.05 s from port \w+ of"):
        first.get(_SOON_S)
    for number in range(3):
        port.send(number)
    assert second.get(_PATIENCE_S) == 0
    assert third.done() and third.get(_PATIENCE_S) == third.get() == 1
    assert first.result(_PATIENCE_S) == 2


def test_who_gives_up_takes_nothing_with_him() -> None:
    port, receiver = Channel.open()

    async def main() -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.recv(), _SOON_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiver.recv().as_asyncio(), _SOON_S)
        port.send(1)
        return int(await receiver.recv())

    with pytest.raises(TimeoutError):
        receiver.recv().get(_SOON_S)
    cancelled = receiver.recv()
    cancelled.add_done_callback(lambda _: None)
    assert cancelled.cancel()
    assert asyncio.run(main()) == 1


def test_messages_are_waited_for_like_calls(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()
    waiting = [receiver.recv(), receiver.recv()]
    assert concurrent.futures.wait(waiting, _SOON_S).not_done == set(waiting)
    sender.count.broadcast(port, 3)
    assert [future.result() for future in concurrent.futures.as_completed(waiting, _PATIENCE_S)] in ([0, 1], [1, 0])
    called: list[int] = []
    last = receiver.recv()
    last.add_done_callback(lambda future: called.append(future.result()))
    assert wait_until("the callback", lambda: called) == [2] and last.get() == 2


def test_many_readers_lose_nothing_and_share_nothing(senders: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()
    seen: list[int] = []

    async def read(num: int) -> list[int]:
        return list(await asyncio.gather(*(receiver.recv() for _ in range(num))))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(lambda: [receiver.recv().get(_PATIENCE_S) for _ in range(100)]) for _ in range(3)]
        loop = pool.submit(lambda: asyncio.run(read(100)))
        senders.count.broadcast(port, 200)
        for reader in [*threads, loop]:
            seen += reader.result(_PATIENCE_S)
    assert sorted(seen) == sorted([*range(200)] * 2)


def test_coroutines_iterate(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()

    async def main() -> list[int]:
        sender.count.broadcast(port, 10)
        seen = []
        async for number in receiver:
            seen.append(number)
            if number == 9:
                receiver.close()
        return seen

    assert asyncio.run(main()) == list(range(10))


def test_a_port_for_one_message_takes_one(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open(once=True)
    sender.count.broadcast(port, 2)
    sender.progress.call_one().get(_PATIENCE_S)
    assert receiver.recv().get(_PATIENCE_S) == 0
    with pytest.raises(PortClosed, match="it was opened for one message, which has arrived"):
        receiver.recv().get(_PATIENCE_S)
    assert list(receiver) == []


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_bounded_port_holds_its_senders_back_until_it_is_gone(senders: ActorMesh[Sender], how: str) -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        Channel.open(capacity=0)
    port, receiver = Channel.open(capacity=3)
    senders.count_in_background.call(port, 10).get(_PATIENCE_S)

    def progress() -> list[int]:
        return list(senders.progress.call().get(_PATIENCE_S).values())

    wait_until("both are full", progress, accept=lambda seen: seen == [3, 3])
    seen = [receiver.recv().get(_PATIENCE_S) for _ in range(10)]
    wait_until("what was read was sent anew", progress, accept=lambda now: sum(now) == 16)
    assert sorted(set(seen)) == list(range(max(seen) + 1))
    if how == "closed":
        receiver.close()
    else:
        del receiver
        gc.collect()
    wait_until("the senders know", progress, accept=lambda now: set(now) <= {-1, 10})
    assert -1 in progress()
    with pytest.raises(PortClosed, match=r"nothing comes through a port of .* any more: its receiver was closed"):
        send_until_refused(port)


def test_readers_hear_that_a_port_is_closed() -> None:
    port, receiver = Channel.open()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, receiver)
        called = receiver.recv()
        called.add_done_callback(lambda _: None)
        port.send(0)
        assert called.get(_PATIENCE_S) == 0
        port.send(1)
        with receiver:
            pass
        assert reading.result(_PATIENCE_S) in ([1], [])
    with pytest.raises(PortClosed, match="its receiver was closed"):
        receiver.recv().get(_PATIENCE_S)
    port.send(2)  # lost, as documented
    assert not current_runtime().actors.ports


@pytest.mark.slow
def test_an_unread_port_without_capacity_is_bounded_in_bytes(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open()
    sender.count_in_background.call_one(port, 20_000).get(_PATIENCE_S)
    held = wait_until(
        "the sender is held back",
        lambda: [sender.progress.call_one().get(_PATIENCE_S) for _ in range(20)],
        accept=lambda seen: seen[0] == seen[-1] > 0,
    )[0]
    assert held < _WINDOW_BYTES / 4096
    assert [receiver.recv().get(_PATIENCE_S) for _ in range(20_000)] == list(range(20_000))


def test_ports_of_actors_are_passed_on(senders: ActorMesh[Sender]) -> None:
    first, second = senders.slice(hosts=0, gpus=0), senders.slice(hosts=1, gpus=0)
    port = first.open.call_one().get(_PATIENCE_S)
    second.count.broadcast(port, 20)
    assert first.read.call_one(10).get(_PATIENCE_S) == list(range(10))
    assert first.read_in_a_coroutine.call_one(10).get(_PATIENCE_S) == list(range(10, 20))
    port.send(7)
    first.send.call_one(pickle.loads(pickle.dumps(port)), 8).get(_PATIENCE_S)  # to a port of its own process
    assert first.read.call_one(2).get(_PATIENCE_S) == [7, 8]


def test_a_coroutine_is_slowed_but_never_stopped_by_a_full_port(sender: ActorMesh[Sender]) -> None:
    port, receiver = Channel.open(capacity=1)
    sender.count_from_a_coroutine.call_one(port, 3).get(_PATIENCE_S)
    assert [receiver.recv().get(_PATIENCE_S) for _ in range(3)] == [0, 1, 2]


@pytest.mark.slow
def test_who_sends_to_the_dead_is_not_held_back(procs: ProcMesh, faults: list[MeshFailure]) -> None:
    with monarch_hpc.hosts().slice(hosts=0).spawn_procs() as mortal:
        actor = mortal.spawn("mortal", Sender)
        port = actor.open.call_one().get(_PATIENCE_S)
        bounded: Port[int] = Port(port._home, port._number + 1, 1)  # has no receiver
        with pytest.raises(PortClosed):
            send_until_refused(bounded)
        actor.leave.broadcast()
        wait_until("the end of the proc", lambda: faults)
        for _ in range(100):
            port.send(1)
