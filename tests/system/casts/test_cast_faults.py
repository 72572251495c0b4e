"""Casts when hosts and agents die on the way."""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Iterator

import pytest

import monarch_hpc
from monarch_hpc import Accumulator, ActorDied, ActorMesh, DeliveryUnknown, HostMesh, MeshError, ProcMesh
from monarch_hpc.testing import wait_until
from tests.system.support.casting import NUM, NUM_HOSTS, PATIENCE_S, Log, casting, procs
from tests.system.support.controlling import controlled

__all__ = ["procs"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(casting(), NUM_HOSTS) as hosts:
        yield hosts


def test_the_death_of_an_agent_in_the_middle_ends_no_more_than_it_must(hosts: HostMesh, procs: ProcMesh) -> None:
    logs, others = procs.spawn("log", Log), procs.spawn("other", Log)
    others.rank.call().get(PATIENCE_S)
    waiting = logs.wait_unless.options(on_error="collect").call(-1, "cut")
    logs.write.broadcast("before")
    os.kill(hosts.entries[1].pid, signal.SIGKILL)
    failures = wait_for_death(others)
    assert sorted(point.rank for point in failures) == [2, 3]
    # Host 2 is below host 1 in the tree. Direct messages do not wait for casts that were lost on the way.
    behind = logs.slice(hosts=2, gpus=0)
    last = behind.write.call_one("after")
    for host in (0, 2, 3, 4):
        others.slice(hosts=host).open.call("cut").get(PATIENCE_S)
    lost = waiting.get(PATIENCE_S).failures()
    assert {2, 3} <= {point.rank for point in lost} <= {2, 3, 4, 5}
    assert last.get(PATIENCE_S) in (1, 2)
    assert behind.read.call_one().get(PATIENCE_S)[-1] == "after"
    assert list(logs.slice(hosts=slice(2, 5)).rank.call().get(PATIENCE_S).values()) == list(range(4, NUM))


def test_the_death_of_an_agent_ends_a_reduction_and_no_other(hosts: HostMesh, procs: ProcMesh) -> None:
    some, ends = procs.slice(hosts=slice(0, None, 2)), slice(0, None, 2)
    logs, others = some.spawn("log", Log), some.spawn("other", Log)
    total = Accumulator(logs.rank, 0, operator.add, merge=operator.add)
    assert total.accumulate().get(PATIENCE_S) == 0 + 1 + 4 + 5 + 8 + 9
    waiting = Accumulator(logs.wait_unless, 0, operator.add, merge=operator.add).accumulate(-1, "ends")
    os.kill(hosts.entries[2].pid, signal.SIGKILL)
    others.slice(hosts=ends).open.call("ends").get(PATIENCE_S)
    with pytest.raises((ActorDied, DeliveryUnknown, MeshError)):
        waiting.get(PATIENCE_S)
    left = Accumulator(logs.slice(hosts=ends).rank, 0, operator.add, merge=operator.add)
    assert left.accumulate().get(PATIENCE_S) == 0 + 1 + 8 + 9


def wait_for_death(logs: ActorMesh[Log]) -> dict[monarch_hpc.Point, BaseException]:
    """Cast until only dead procs fail: casts in flight when the agent died may miss others too."""

    def failures() -> dict[monarch_hpc.Point, BaseException]:
        return logs.rank.options(on_error="collect", timeout=PATIENCE_S).call().get(PATIENCE_S).failures()

    def dead_only(seen: dict[monarch_hpc.Point, BaseException]) -> bool:
        return bool(seen) and all(isinstance(failure, ActorDied) for failure in seen.values())

    return wait_until("only the dead fail", failures, PATIENCE_S, accept=dead_only)
