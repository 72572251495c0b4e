"""Meshes of sharded tensors that lose ranks, and go on as if nothing had happened.

Each test has procs of its own: what starts with the first procs of a host outlives a test.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.grid_training import GridTraining
from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, heal_mesh, module_to_mesh
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.tensor import inspect
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle
from tests.system.tensor.deaths import die, read_until_lost

STEPS = 6
_NOTHING: dict[int, Callable[[Mesh], None]] = {}


@pytest.fixture
def mesh(grid_of_its_own: ProcMesh) -> Mesh:
    return Mesh(procs=grid_of_its_own)


def _nothing(_mesh: Mesh) -> None:
    """Does not disturb."""


class Training(GridTraining):
    """The loop that everyone writes."""

    def __init__(self, mesh: Mesh, *, captured: bool = False) -> None:
        super().__init__(mesh, STEPS, captured=captured)
        self.errors: list[DeviceMeshError] = []

    def step_until_lost(self) -> None:
        """Steps, until a rank is missed."""
        for batch in self.batches * 1000:
            self.step(*batch)

    def run(
        self,
        before: dict[int, Callable[[Mesh], None]] = _NOTHING,
        in_step: dict[int, Callable[[Mesh], None]] = _NOTHING,
    ) -> list[float]:
        """The losses; *before* some steps, and *in_step* before the optimizer's, something happens once."""
        before, in_step = dict(before), dict(in_step)
        losses: list[float] = []
        while len(losses) < STEPS:
            at = len(losses)
            try:
                before.pop(at, _nothing)(self.mesh)
                losses.append(self.step(*self.batches[at], in_step.pop(at, None)))
            except DeviceMeshError as error:
                self.errors.append(error)
                assert heal_mesh(self.mesh) is self.mesh
        return losses


_expected: list[tuple[list[float], list[torch.Tensor]]] = []


def _undisturbed(mesh: Mesh) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and the state of a training that nothing happens to."""
    if not _expected:
        training = Training(mesh)
        _expected.append((training.run(), training.state()))
    return _expected[0]


def _check_equal(training: Training, losses: list[float]) -> None:
    expected = _undisturbed(training.mesh)
    assert losses == expected[0]
    for one, other in zip(training.state(), expected[1], strict=True):
        assert torch.equal(one, other)
    assert training.optimizer.param_groups[0]["lr"] == 1e-2 * 0.5 ** (STEPS // 2)


@pytest.mark.parametrize("place", ["before", "in_step"])
def test_the_loop_that_repeats_its_batch_is_exact(mesh: Mesh, place: str) -> None:
    training = Training(mesh)
    done = mesh.version
    faults = {0: lambda mesh: die(mesh, 1), 3: lambda mesh: die(mesh, 2), 4: lambda mesh: die(mesh, 0)}
    losses = training.run(faults) if place == "before" else training.run(in_step=faults)
    assert mesh.version == done + STEPS
    _check_equal(training, losses)
    assert [(error.kind, error.rank) for error in training.errors] == [("died", 1), ("died", 2), ("died", 0)]
    error = training.errors[0]
    assert error.host and "signal 9" in error.cause and error.version >= 0 and "heal_mesh(mesh)" in str(error)


def _refuse_once(x: Any, folder: str) -> Any:
    if x.device_mesh.get_rank() == 3 and not os.path.exists(f"{folder}/refused"):
        Path(folder, "refused").touch()
        raise ArithmeticError("not here")
    return x


def test_a_rank_that_fails_alone_goes_back_with_the_others(mesh: Mesh, tmp_path: Path) -> None:
    training = Training(mesh)

    def fail(mesh: Mesh) -> None:
        mesh.execute(_refuse_once, torch.ones(1), str(tmp_path), propagate=lambda x, folder: x)

    losses = training.run(in_step={2: fail})
    _check_equal(training, losses)
    assert [error.kind for error in training.errors] == ["diverged"] and "not here" in training.errors[0].cause


def _hang_once(x: Any, folder: str) -> Any:
    if x.device_mesh.get_rank() == 3 and not os.path.exists(f"{folder}/hung"):
        Path(folder, "hung").touch()
        Event().wait()
    return x


def test_a_rank_that_does_not_come_out_of_an_operation_is_replaced(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_HPC_TENSOR__COLLECTIVE_S", "8")
    monkeypatch.setenv("MONARCH_HPC_TENSOR__FENCE_S", "4")
    training = Training(mesh)

    def hang(mesh: Mesh) -> None:
        mesh.execute(_hang_once, torch.ones(1), str(tmp_path), propagate=lambda x, folder: x)

    losses = training.run(in_step={2: hang})
    assert [(error.kind, error.rank) for error in training.errors] == [("stuck", 3)]
    error = training.errors[0]
    assert "does not come out" in error.cause and "in hang: mesh.execute(_hang_once" in error.cause
    assert "_hang_once" in error.stacks[3]
    _check_equal(training, losses)


def _require_known(x: Any, name: str) -> Any:
    known = {str(schema.op) for schema in x.device_mesh.propagated}
    if name not in known:
        raise ArithmeticError(f"DTensor has to work {name} out, and knows {known}")
    return x


def test_a_replacement_takes_over_what_dtensor_has_worked_out(mesh: Mesh) -> None:
    data: Any = distribute(torch.arange(4.0), mesh, ["dp"])
    mesh.commit()
    assert (data * 2).sum().item() == 12.0
    die(mesh, 3)
    with pytest.raises(DeviceMeshError, match="rank 3"):
        read_until_lost(data)
    mesh.heal(rewind=True)
    known: Any = mesh.execute(_require_known, torch.ones(2), "aten.mul.Tensor", propagate=lambda x, name: x)
    assert known.sum().item() == 2.0


def test_tensors_from_before_the_last_step_stay_and_later_ones_are_lost(mesh: Mesh) -> None:
    training = Training(mesh)
    data: Any = distribute(torch.arange(6.0), mesh, [("dp", "tp")])  # no rank has a copy of another's part
    mesh.commit()
    later: Any = data * 2
    assert later.sum().item() == 30.0
    die(mesh, 3)
    with pytest.raises(DeviceMeshError, match="rank 3"):
        read_until_lost(later)
    heal_mesh(mesh)
    assert data.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DeviceMeshError, match="could not be kept") as caught:
        later.full_tensor()
    assert caught.value.kind == "lost"
    assert training.step(*training.batches[0]) > 0


def test_what_a_repeated_batch_does_not_bring_back_is_refused_and_can_be_rewound(mesh: Mesh) -> None:
    training = Training(mesh)
    average: Any = mesh.zeros(3)
    mesh.commit()
    training.step(*training.batches[0])
    version = mesh.version
    average.add_(1)  # belongs to no step, and no loop repeats it
    die(mesh, 2)
    with pytest.raises(DeviceMeshError):
        training.step_until_lost()
    with pytest.raises(DeviceMeshError, match=r"call mesh.commit\(\) after them"):
        heal_mesh(mesh)
    heal_mesh(mesh, rewind=True)
    assert (mesh.version, average.tolist()) == (version, [0, 0, 0])
    average.add_(1)
    mesh.commit()
    die(mesh, 0)
    with pytest.raises(DeviceMeshError):
        read_until_lost(average)
    heal_mesh(mesh)
    assert average.tolist() == [1, 1, 1]


def test_a_parameter_of_which_nobody_has_a_copy_is_lost(hosts: HostMesh, procs: ProcMesh) -> None:
    pair = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
    settle(pair)
    mesh = Mesh(procs=pair)
    weight: Any = distribute(torch.ones(4, requires_grad=True), mesh, ["dp"])
    mesh.commit()
    weight.sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    assert weight.sum().item() == pytest.approx(3.6)
    die(mesh, 1)
    with pytest.raises(DeviceMeshError, match="rank 1"):
        read_until_lost(weight)
    with pytest.raises(DeviceMeshError, match=r"shape \(4,\), sharded dimension 0 over dp, on rank 1") as caught:
        heal_mesh(mesh)
    assert (caught.value.kind, caught.value.rank) == ("lost", 1)
    mesh.stop()


def _with_module(mesh: Mesh) -> None:
    module_to_mesh(nn.Linear(4, 2), mesh, remote=True)


def _with_optimizer(mesh: Mesh) -> None:
    RemoteOptimizer(torch.optim.SGD, [mesh.zeros(4, requires_grad=True)], lr=0.1)


@pytest.mark.parametrize(
    ("prepare", "why"), [(_with_module, "a module lives"), (_with_optimizer, "an optimizer lives")]
)
def test_what_lives_on_the_ranks_is_in_no_version_and_not_healed(
    mesh: Mesh, prepare: Callable[[Mesh], None], why: str
) -> None:
    mesh.commit()
    prepare(mesh)
    assert mesh.version == -1
    with pytest.raises(TypeError, match=why):
        mesh.commit()
    x = distribute(torch.ones(8), mesh, ["dp"])
    die(mesh, 3)
    with pytest.raises(DeviceMeshError, match="load the last checkpoint") as died:
        read_until_lost(x)
    assert died.value.kind == "died"
    with pytest.raises(DeviceMeshError, match=rf"{why} .*: load the last checkpoint") as refused:
        heal_mesh(mesh)
    assert (refused.value.kind, refused.value.rank) == ("lost", died.value.rank)


def test_a_mesh_without_versions_is_not_healed(mesh: Mesh) -> None:
    bare = Mesh(procs=mesh.procs, commit=False)
    x = distribute(torch.ones(8), bare, ["dp"])
    assert bare.version == -1
    die(bare, 3)
    with pytest.raises(DeviceMeshError):
        read_until_lost(x)
    with pytest.raises(DeviceMeshError, match=r"commit=False.*load the last checkpoint"):
        heal_mesh(bare)


def test_a_loaded_checkpoint_is_a_version_and_others_are_saved_after_a_heal(mesh: Mesh, tmp_path: Path) -> None:
    training = Training(mesh)
    parts = {"model": training.model, "optimizer": training.optimizer}
    training.step(*training.batches[0])
    mesh.save(parts, tmp_path / "before")
    saved = training.state()
    training.step(*training.batches[1])
    mesh.load(parts, tmp_path / "before")
    die(mesh, 3)
    with pytest.raises(DeviceMeshError):
        training.step_until_lost()
    heal_mesh(mesh)
    assert all(map(torch.equal, training.state(), saved))
    mesh.save(parts, tmp_path / "after")
    training.step(*training.batches[1])
    mesh.load(parts, tmp_path / "after")
    assert all(map(torch.equal, training.state(), saved))


def test_what_was_loaded_into_a_part_without_a_copy_is_lost(mesh: Mesh, tmp_path: Path) -> None:
    x = distribute(torch.zeros(8), mesh, [("dp", "tp")])
    mesh.save({"x": distribute(torch.ones(8), mesh)}, tmp_path / "ones")
    mesh.load({"x": x}, tmp_path / "ones")
    die(mesh, 3)
    with pytest.raises(DeviceMeshError):
        read_until_lost(x)
    with pytest.raises(DeviceMeshError, match="load the last checkpoint") as lost:
        heal_mesh(mesh)
    assert lost.value.kind == "lost"


def test_captured_steps_are_versions_and_end_with_a_heal(mesh: Mesh) -> None:
    training = Training(mesh, captured=True)
    done = mesh.version
    losses = training.run({4: lambda mesh: die(mesh, 3)})
    assert mesh.version == done + STEPS
    _check_equal(training, losses)
    # The first call makes the optimizer's state, two are recorded, and then two after the heal: the last is left.
    # The call with the dead rank is a replay, too, unless the death was known before it was sent.
    assert training.on_ranks.num_replays in (1, 2), training.on_ranks.reason
    assert [error.kind for error in training.errors] == ["died"]


def test_captured_steps_of_values_on_each_rank_end_with_a_heal(mesh: Mesh) -> None:
    x = distribute(torch.ones(8), mesh, ["dp"])
    mesh.commit()
    step = mesh.capture(lambda tensor: tensor + 1)
    assert [step(x).full_tensor().sum().item() for _ in range(4)] == [16.0] * 4
    assert step.num_replays == 2
    with mesh.procs.activate():
        own = mesh.procs.capture(lambda tensor: tensor * 2)
        for _ in range(4):
            own(torch.ones(3))
        assert own.num_replays == 2
        die(mesh, 3)
        with pytest.raises(DeviceMeshError):
            read_until_lost(x)
        heal_mesh(mesh)
        for _ in range(4):
            assert inspect(own(torch.ones(3))).tolist() == [2.0] * 3
    assert own.num_replays == 4
