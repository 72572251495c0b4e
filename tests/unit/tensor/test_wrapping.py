"""Sharded tensors of a rank's parts, and code that runs without the rules for them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.sharded.device_mesh import bare_device_mesh
from monarch_hpc.tensor.worker.sharded.modes import Above, BelowAll, WithoutModes
from monarch_hpc.tensor.worker.sharded.wrapping import wrapped


@pytest.mark.parametrize("placement", [Shard(0), Replicate(), Partial("avg")], ids=str)
def test_it_is_what_dtensor_makes(placement: Any) -> None:
    mesh = bare_device_mesh(MeshSpec(1, ("dp",), (2,), (0, 1), 0), 0)
    own = torch.randn(2, 3)
    shape = (4, 3) if isinstance(placement, Shard) else (2, 3)
    made = wrapped(own, mesh, (placement,), shape, (3, 1))
    other = DTensor.from_local(own, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=(3, 1))
    assert type(made) is DTensor and made._spec == other._spec
    assert made.shape == shape and made.stride() == (3, 1) and not made.requires_grad
    assert made._local_tensor.data_ptr() == own.data_ptr()
    double = wrapped(own.double(), mesh, (placement,), shape, (3, 1))
    assert double.dtype == torch.float64 and made.dtype == torch.float32


def test_descriptions_that_are_kept_are_bounded() -> None:
    mesh = bare_device_mesh(MeshSpec(1, ("dp",), (2,), (0, 1), 0), 0)
    for size in range(3000):
        assert wrapped(torch.empty(size), mesh, (Replicate(),), (size,), (1,)).shape == (size,)
    assert len(mesh.specs) <= 1024


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += 1
        return op(*args, **(kwargs or {}))


def test_modes_are_out_of_force_and_return_in_their_order() -> None:
    with _Seen() as outer, _Seen() as inner:
        with WithoutModes():
            torch.ones(1)
            with WithoutModes():
                torch.ones(1)
        with pytest.raises(ZeroDivisionError), WithoutModes():
            raise ZeroDivisionError
        assert (outer.num, inner.num) == (0, 0)
        torch.ones(1)
        assert inner.num == 1
    torch.ones(1)
    assert outer.num == 1


def test_what_is_left_for_a_while_is_in_force_again_afterwards() -> None:
    with _Seen() as seen:
        below = BelowAll()
        with below:
            with Above(below):
                torch.ones(1)
                assert seen.num == 1 and (torch.ones(1, requires_grad=True) * 2).requires_grad
            with pytest.raises(ZeroDivisionError), Above(below):
                raise ZeroDivisionError
            before = seen.num
            assert not (torch.ones(1, requires_grad=True) * 2).requires_grad
            assert seen.num == before
        torch.ones(1)
        assert seen.num == before + 1
