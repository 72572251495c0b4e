from __future__ import annotations

import pytest

from monarch_hpc.actor.casts.targets import CastTargets
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.shape import Extent, Region

PROCS = {rank: ProcRef(1, rank, f"n{rank // 2}", rank // 2, 100 + rank, 1000 + rank, ()) for rank in range(6)}
WHOLE = Region.whole(Extent(("hosts", "gpus"), (3, 2)))


@pytest.mark.parametrize(
    ("region", "in_blocks"),
    [
        (WHOLE, True),
        (WHOLE.slice(gpus=1), True),
        (WHOLE.slice(hosts=slice(2, None, -2)), True),
        (Region(Extent(("gpus", "hosts"), (2, 3)), 0, (1, 2)), False),
    ],
    ids=["whole", "one of each host", "backwards", "hosts in turns"],
)
def test_an_aim_knows_whether_the_places_of_each_host_follow_each_other(region: Region, in_blocks: bool) -> None:
    target = CastTargets().of("feedbeef", region, PROCS)
    assert target is not None and target.in_blocks is in_blocks
