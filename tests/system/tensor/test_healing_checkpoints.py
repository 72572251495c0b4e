"""State that no rank has a copy of comes from a checkpoint, or the mesh stays broken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import HostMesh, MeshDied, ProcMesh
from monarch_hpc.distributed import Mesh, distribute, heal_mesh
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle
from tests.system.tensor.deaths import die, read_until_lost

_STEPS = 6


@pytest.fixture
def pair(hosts: HostMesh, procs: ProcMesh) -> Iterator[Mesh]:
    """Two procs, with parts that no other one has."""
    found = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
    settle(found)
    yield Mesh(procs=found)
    found.stop().get()


class Sharded:
    """A training whose parameters have no copies, and its checkpoint."""

    def __init__(self, mesh: Mesh, path: Path) -> None:
        self.mesh, self.path = mesh, path
        torch.manual_seed(4)
        self.weight: Any = distribute(torch.randn(5, 3).requires_grad_(), mesh, ["dp", None])  # 3 rows, and 2
        self.optimizer = torch.optim.AdamW([self.weight], lr=0.1)
        self.losses: list[float] = []
        mesh.commit()

    def step(self) -> None:
        """A step, which draws random numbers."""
        self.optimizer.zero_grad()
        loss: Any = nn.functional.dropout(self.weight, 0.25).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def save(self) -> None:
        """Save a checkpoint."""
        self.mesh.save({"weight": self.weight, "optimizer": self.optimizer}, self.path)
        self.saved_at = len(self.losses)

    def load(self, mesh: Mesh) -> None:
        """Go back to it."""
        mesh.load({"weight": self.weight, "optimizer": self.optimizer}, self.path)
        del self.losses[self.saved_at :]


def test_what_no_rank_has_a_copy_of_comes_from_a_checkpoint(pair: Mesh, tmp_path: Path) -> None:
    undisturbed = Sharded(pair, tmp_path / "unused")
    pair.manual_seed(5)
    for _ in range(_STEPS):
        undisturbed.step()
    losses, weight = undisturbed.losses, undisturbed.weight.full_tensor()
    del undisturbed  # what it holds would be lost, too
    training = Sharded(pair, tmp_path / "saved")
    pair.manual_seed(5)
    pair.commit()
    healed = 0
    while len(training.losses) < _STEPS:
        try:
            training.step()
            if len(training.losses) == 2 and not healed:
                training.save()
            if len(training.losses) == 4 and not healed:
                die(pair, 1)
        except DeviceMeshError:
            with pytest.raises(DeviceMeshError, match="load the last checkpoint"):
                heal_mesh(pair)
            heal_mesh(pair, checkpoint=training.load)
            healed += 1
            assert len(training.losses) == 2
    assert healed == 1
    assert training.losses == losses
    assert torch.equal(training.weight.full_tensor(), weight)


class _Deadly:
    """Ends a rank that is writing it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __reduce__(self) -> tuple[Any, ...]:
        if threading.current_thread().name == "checkpoint" and os.getpid() == self.pid:
            os.kill(self.pid, signal.SIGKILL)
        return _Deadly, (self.pid,)


@pytest.mark.parametrize("background", [False, True], ids=["save", "async_save"])
def test_a_rank_that_dies_in_a_save_costs_no_other_rank(pair: Mesh, tmp_path: Path, background: bool) -> None:
    training = Sharded(pair, tmp_path / "saved")
    training.step()
    training.save()
    first, second = (proc.pid for proc in pair.procs.procs)
    deadly = {str(number): _Deadly(second) for number in range(8)}  # the ranks share them

    def save() -> None:
        if background:
            pair.async_save(deadly, tmp_path / "half").wait()
        else:
            pair.save(deadly, tmp_path / "half")

    with pytest.raises((DeviceMeshError, MeshDied)):
        save()
    heal_mesh(pair, checkpoint=training.load)
    assert pair.procs.procs[0].pid == first
    weight = training.weight.full_tensor()
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        training.mesh.load({"weight": training.weight}, tmp_path / "half")
    (tmp_path / "half" / "__7_0.distcp").write_bytes(b"of more ranks")
    training.mesh.save({"weight": training.weight}, tmp_path / "half")
    assert sorted(path.name[:4] for path in (tmp_path / "half").iterdir()) == [".met", "__0_", "__1_"]
    training.mesh.load({"weight": training.weight}, tmp_path / "half")
    assert torch.equal(training.weight.full_tensor(), weight)


def test_nothing_computes_with_what_a_checkpoint_has_not_brought_back(pair: Mesh, tmp_path: Path) -> None:
    training = Sharded(pair, tmp_path / "saved")
    training.step()
    training.save()
    die(pair, 0)
    with pytest.raises(DeviceMeshError):
        read_until_lost(training.weight)
    with pytest.raises(DeviceMeshError, match="3 tensors that no rank has a copy of were not loaded") as lost:
        heal_mesh(pair, checkpoint=lambda _mesh: None)
    assert lost.value.kind == "lost"
    with pytest.raises(DeviceMeshError, match="were not loaded"):
        training.weight.sum().item()
    with pytest.raises(DeviceMeshError, match="give checkpoint="):
        heal_mesh(pair)
    with pytest.raises(FileNotFoundError):
        heal_mesh(pair, checkpoint=lambda mesh: mesh.load({"weight": training.weight}, tmp_path / "missing"))
    heal_mesh(pair, checkpoint=training.load)
    training.step()
    assert len(training.losses) == 2
