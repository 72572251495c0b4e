"""Values of a rank that another one could take over, and those that are lost with it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.healing.journal import LOST
from monarch_hpc.tensor.worker.healing.state import spoil_unkept
from monarch_hpc.tensor.worker.sharded.device_mesh import bare_device_mesh
from monarch_hpc.tensor.worker.sharded.wrapping import wrapped
from monarch_hpc.tensor.worker.values import Failure, Values


def test_what_has_no_memory_or_is_no_sum_yet_is_lost() -> None:
    mesh = bare_device_mesh(MeshSpec(1, ("dp",), (2,), (0, 1), 0), 0)
    values = Values()
    for number, placement in enumerate([Shard(0), Replicate(), Partial(), Replicate()], 1):
        shape = (4, 3) if isinstance(placement, Shard) else (2, 3)
        values[number] = wrapped(torch.ones(2, 3), mesh, (placement,), shape, (3, 1))
    values[4]._local_tensor.untyped_storage().resize_(0)  # released, as FSDP does between two uses
    values[5] = torch.ones(2)  # a value of this rank's own
    spoil_unkept(values)
    assert [type(values[number]) for number in range(1, 6)] == [DTensor, DTensor, Failure, Failure, Failure]
    assert [values[number].root for number in (3, 4, 5)] == [LOST] * 3
    assert values.num_failed == 3
