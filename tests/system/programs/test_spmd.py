"""`spmd(procs)` sets up torch.distributed, also where an event loop runs, and again after a death or a failed start."""

from __future__ import annotations

import asyncio
import os
import signal
from importlib.util import find_spec
from typing import Any

import pytest

from monarch_hpc import Actor, ActorError, MeshDied, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.mesh.scripts.spmd import spmd
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled

_PATIENCE_S = 60.0
_ELEMENTS = 1 << 24


class Rank(Actor):
    """One rank of a process group."""

    @endpoint
    def total(self) -> float:
        """The sum over all ranks, as each of them gets it."""
        import torch
        import torch.distributed as dist

        self.kept = dist.group.WORLD  # as models do: it is not closed when torch drops it
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        return float(value)

    @endpoint
    def take(self, source: int) -> None:
        """Wait for a value of another rank, which sends none."""
        import torch
        import torch.distributed as dist

        dist.recv(torch.zeros(1), src=source)

    @endpoint
    def give(self) -> None:
        """Send large values for ever."""
        import torch
        import torch.distributed as dist

        while True:
            dist.broadcast(torch.ones(_ELEMENTS), src=1)

    @endpoint
    def take_half(self, giver: int) -> None:
        """End the giver's process in the middle of a value, and wait for the rest."""
        import torch
        import torch.distributed as dist

        while True:
            value = torch.zeros(_ELEMENTS)
            work: Any = dist.broadcast(value, src=1, async_op=True)
            wait_until("a part of a value", lambda: bool(value[0]), interval_s=0)  # noqa: B023 called at once
            os.kill(giver, signal.SIGSTOP)
            if not value[-1]:
                os.kill(giver, signal.SIGKILL)
            else:
                os.kill(giver, signal.SIGCONT)
            work.wait()

    @endpoint
    def objects(self) -> list[object]:
        """Collectives of each kind on a group that code makes itself, and what they give."""
        import torch
        import torch.distributed as dist

        rank, num = dist.get_rank(), dist.get_world_size()
        found: list[object] = [None] * num
        dist.all_gather_object(found, {"rank": rank})
        told = [rank]
        dist.broadcast_object_list(told, src=1)
        value = torch.full((2,), float(rank))
        group = dist.new_group(list(range(num)))
        dist.all_reduce(value, group=group)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False), process_group=group)
        model(torch.full((1, 2), float(rank))).sum().backward()
        dist.barrier()
        (weight,) = model.parameters()
        assert weight.grad is not None
        return [*found, *told, value.tolist(), weight.grad.tolist()]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.mark.slow  # imports torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_coroutine_sets_up_the_group_and_closes_it() -> None:
    async def main() -> None:
        with controlled(load().config, num_hosts=1) as hosts, hosts.spawn_procs() as procs:
            group = spmd(procs)
            with pytest.warns(RuntimeWarning, match="write 'await future' instead"):
                group.init("gloo")
            with pytest.warns(RuntimeWarning):
                group.close()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_survivors_of_a_death_and_of_a_failed_start_meet_again(faults: list[MeshFailure]) -> None:
    with (
        controlled(load().config, num_hosts=1) as hosts,
        hosts.spawn_procs({"gpus": 3}, preload=["torch"]) as procs,
    ):
        group = spmd(procs)
        ranks = procs.spawn("rank", Rank)
        with pytest.raises(ActorError, match="nonsense"):
            group.init("nonsense")
        group.init()
        assert set(ranks.total.call().get(_PATIENCE_S).values()) == {6.0}

        # One dies, while another waits for one that lives.
        waiting = ranks.slice(gpus=0).take.call_one(1)
        victim = ranks.slice(gpus=2).pid.call_one().get(_PATIENCE_S)
        died = ranks.slice(gpus=2).take.call(1)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(MeshDied):
            died.get(_PATIENCE_S)
        assert procs.heal("respawn").respawned == (2,)
        spmd(procs).init()
        assert set(ranks.total.call().get(_PATIENCE_S).values()) == {6.0}
        assert waiting.exception(_PATIENCE_S) is not None

        # One waits for another that has given up; nobody dies.
        waiting = ranks.slice(gpus=0).take.call_one(1)
        spmd(procs).init()
        assert "closed" in str(waiting.exception(_PATIENCE_S))
        assert set(ranks.total.call().get(_PATIENCE_S).values()) == {6.0}

        # A start that fails for all of them, and a group of fewer.
        with pytest.raises(ActorError, match="nonsense"):
            spmd(procs).init("nonsense")
        fewer = procs.slice(gpus=slice(0, 3, 2))
        spmd(fewer).init()
        assert set(ranks.slice(gpus=slice(0, 3, 2)).total.call().get(_PATIENCE_S).values()) == {3.0}
    assert faults == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_one_that_waits_for_the_rest_of_a_message_is_freed(faults: list[MeshFailure]) -> None:
    with controlled(load().config, num_hosts=1) as hosts, hosts.spawn_procs({"gpus": 2}, preload=["torch"]) as procs:
        ranks = procs.spawn("rank", Rank)
        spmd(procs).init()
        expected = [{"rank": 0}, {"rank": 1}, 1, [1.0, 1.0], [[0.5, 0.5]]]
        assert list(ranks.objects.call().get(_PATIENCE_S).values()) == [expected] * 2
        giver = ranks.slice(gpus=1)
        victim = giver.pid.call_one().get(_PATIENCE_S)
        giving = giver.give.call()
        waiting = ranks.slice(gpus=0).take_half.call_one(victim)
        assert giving.exception(_PATIENCE_S) is not None
        assert procs.heal("respawn").respawned == (1,)
        spmd(procs).init()
        assert waiting.exception(_PATIENCE_S) is not None
        assert set(ranks.total.call().get(_PATIENCE_S).values()) == {3.0}
    assert faults == []
