"""`get()` where an event loop runs blocks, works and warns: in a program of coroutines, and in actors."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, endpoint
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class Adder(Actor):
    @endpoint
    def add(self, value: int) -> int:
        return value + 1


class Asker(Actor):
    def __init__(self, adder: ActorMesh[Adder]) -> None:
        self.adder = adder

    @endpoint
    async def ask(self, value: int) -> tuple[int, list[str]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                value = self.adder.add.call_one(value).get(_PATIENCE_S)
        return value, [str(warning.message) for warning in seen]


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


def test_a_coroutine_of_the_program_reads_with_a_warning(hosts: HostMesh) -> None:
    async def main() -> int:
        with hosts.spawn_procs() as procs:
            adder = procs.spawn("adder", Adder)
            with pytest.warns(RuntimeWarning, match="write 'await future' instead"):
                answer: int = adder.add.call_one(await adder.add.call_one(1)).get(_PATIENCE_S)
            return answer

    assert asyncio.run(main()) == 3


def test_an_actor_reads_in_a_coroutine_with_a_warning(hosts: HostMesh) -> None:
    with hosts.spawn_procs() as procs:
        asker = procs.spawn("asker", Asker, procs.spawn("adder", Adder))
        value, (warned,) = asker.ask.call_one(1).get(_PATIENCE_S)
        assert value == 4 and "blocks the running event loop" in warned
