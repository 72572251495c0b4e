"""The table of DTensor's rules: with it, every operator of the sweep gives what it gives on whole tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.worker.sharded import device_mesh, rules, trusted
from tests.guards.tree import ROOT
from tests.system.tensor import sweep


def test_no_operator_is_wrong_on_shards() -> None:
    command = [sys.executable, "-W", "ignore", "-m", sweep.__name__, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-2000:]}"
    assert int(done.stdout.split()[0]) > 150


def test_the_table_is_of_this_torch_and_holds_operators_that_carry_a_training() -> None:
    assert torch.__version__.partition("+")[0] == trusted.TORCH, "run python -m tests.system.tensor.sweep"
    assert not trusted.TRUSTED & trusted.REGULAR
    needed = {"aten.mm.default", "aten.add.Tensor", "aten.mul.Tensor", "aten.t.default", "aten.detach.default"}
    assert needed <= trusted.TRUSTED | trusted.REGULAR
    assert issubclass(device_mesh.RankMesh, torch.distributed.device_mesh.DeviceMesh)
    assert rules.ShardedOps.__torch_dispatch__ is not None
