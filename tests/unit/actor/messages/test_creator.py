"""The creator of an actor travels in plain values, with the creators above it."""

from __future__ import annotations

from dataclasses import replace

from monarch_hpc.actor.context import Context, ProcInfo
from monarch_hpc.actor.messages.creator import pack_creator, unpack_creator
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.shape import Extent, Point, Region
from monarch_hpc.wire.serializer import dumps, loads

_INFO = ProcInfo("a1", "run", 3, 4, "n1", 1, 1, ())
_PROGRAM = ProcRef(0, 0, "login", -1, 1, 11, ())
_PROC = ProcRef(7, 3, "n1", 1, 2, 22, ("tcp://10.0.0.1:99",), 1, "a1")


def test_a_creator_arrives_with_the_one_above_it() -> None:
    nowhere = Point(0, Extent((), ()))
    program = pack_creator(Context("client", nowhere, nowhere, _INFO), _PROGRAM)
    region = Region.whole(Extent.of({"hosts": 2, "gpus": 2})).slice(gpus=1)
    rank = region.extent.point(1)
    actor = Context("worker", rank, rank, _INFO, 5, class_name="app.Worker", region=region, creator=program)
    body, buffers = dumps(pack_creator(actor, _PROC))
    assert not buffers
    creator = unpack_creator(loads(body))
    assert (creator.name, creator.class_name, creator.region, creator.proc) == ("worker", "app.Worker", region, _PROC)
    assert creator.rank == rank
    above = unpack_creator(creator.creator)
    assert (above.name, above.class_name, above.rank, above.proc) == ("client", "", nowhere, _PROGRAM)
    assert above.creator is None and above.region == _PROGRAM.region
    assert unpack_creator(pack_creator(replace(actor, creator=None), _PROC)).creator is None
