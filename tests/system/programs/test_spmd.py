"""`spmd(procs)` sets up torch.distributed, also where an event loop runs."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

from monarch_hpc.config.load import load
from monarch_hpc.mesh.scripts.spmd import spmd
from tests.system.support.controlling import controlled


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
