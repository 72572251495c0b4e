"""`spmd(procs)` sets up torch.distributed, also where an event loop runs, and again after a death or a failed start."""

from __future__ import annotations

import asyncio
import os
import signal
from importlib.util import find_spec

import pytest

from monarch_hpc import Actor, ActorError, MeshDied, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.mesh.scripts.spmd import spmd
from tests.system.support.controlling import controlled

_PATIENCE_S = 60.0


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
