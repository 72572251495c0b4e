"""Meshes whose parts are on GPUs, as far as they go without one."""

from __future__ import annotations

from collections.abc import Iterator
from socket import gethostname
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.distributed import Mesh
from monarch_hpc.tensor.opening import sharded_view_of
from monarch_hpc.tensor.ops.infer import infer
from monarch_hpc.tensor.testing import local_mesh

pytestmark = pytest.mark.usefixtures("procs")
"""Some threads and files start with the first mesh of a process, and outlive a test."""


@pytest.fixture
def local() -> Iterator[Any]:
    with local_mesh(dp=2) as mesh:
        yield mesh


def test_a_device_that_is_not_known_is_refused(local: Any) -> None:
    device: Any = "gpu"
    with pytest.raises(ValueError, match="device is 'gpu', a str; it is 'cpu', or 'cuda'"):
        Mesh(procs=local, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="its ranks have a GPU")
def test_ranks_without_a_gpu_are_named(local: Any) -> None:
    with pytest.raises(ValueError, match=f"rank 0 on host {gethostname()}: torch .* does not reach a GPU, and 1 more"):
        Mesh(procs=local, device="cuda")
    assert Mesh(procs=local).ones(1).full_tensor().tolist() == [1]


def test_all_meshes_of_the_same_procs_have_one_device(local: Any) -> None:
    mesh = Mesh(procs=local)
    assert mesh.ones(2).full_tensor().tolist() == [1, 1]
    assert Mesh(procs=local, device="cpu").slice(dp=0).zeros(1).full_tensor().tolist() == [0]
    with pytest.raises(ValueError, match="tensors that are sharded over these procs are on 'cpu'"):
        sharded_view_of(local, "cuda")


def test_autocast_around_tensors_on_gpus_is_refused_at_its_line(local: Any) -> None:
    x = Mesh(procs=local).ones(2, 2)
    sharded_view_of(local).engine.device = "cuda"
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(NotImplementedError, match="convert the module"):
        x @ x


def test_the_program_knows_where_a_move_leads_without_having_the_device(local: Any) -> None:
    with local.activate():
        x: Any = torch.ones(2, 3)
    to = torch.Tensor.to
    for function, args, options in [
        (to, (x, "cuda"), {}),
        (to, (x, "cuda", torch.float16), {}),
        (to, (x,), {"device": "cuda", "dtype": torch.float16}),
        (torch.Tensor.cuda, (x,), {}),
    ]:
        (found,) = infer(function, args, options).outs
        half = len(args) == 3 or bool(options)
        assert (found.device.type, found.shape, found.dtype) == (
            "cuda",
            (2, 3),
            torch.float16 if half else torch.float32,
        )
    stays = [(torch.Tensor.cpu, (x,)), (to, (x, "cpu")), (to, (x, torch.device("meta"))), (to, (x, torch.float32))]
    assert [infer(function, args, {}).kind for function, args in stays] == ["self"] * 4
