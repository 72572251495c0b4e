"""Checkpoints of meshes: complete or not there, onto other shapes, readable by torch, asynchronous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from tests.system.tensor.trainings import batches, by_ddp, by_fsdp, losses, network

_GET_S = 60.0


def _sent(mesh: Mesh, parts: torch.Tensor) -> list[Any]:
    return [distribute(part, mesh, [mesh.mesh_dim_names[0]]) for part in parts]


def _trained(mesh: Mesh, **options: Any) -> dict[str, Any]:
    model = module_to_mesh(network(), mesh, **options)
    remote = options.get("remote", False)
    if remote:
        optimizer: Any = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0}


def _steps(mesh: Mesh, state: dict[str, Any], data: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    model, optimizer, found = state["model"], state["optimizer"], []
    for x, y in zip(*(_sent(mesh, part) for part in data), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(nn.functional.dropout(model(x), 0.2), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        state["schedule"].step()
        found.append(loss.item())
    return found


_PLAN: dict[str, Any] = {"0.weight": ["tp", None], "2.weight": [None, "tp"]}
_FSDP = {"remote": True, "out_spec": ["dp"], "parallelize": by_fsdp}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    "options",
    [{"plan": _PLAN}, {"plan": _PLAN, "remote": True}, _FSDP],
    ids=["sharded", "sharded on the ranks", "fsdp"],
)
def test_a_loaded_training_goes_on_as_if_nothing_had_been(mesh: Mesh, tmp_path: Path, options: dict[str, Any]) -> None:
    mesh.manual_seed(1)
    data = batches(6)
    state = _trained(mesh, **options)
    _steps(mesh, state, (data[0][:3], data[1][:3]))
    state["step"] = 3
    mesh.save(state, tmp_path / "at 3")
    rest = data[0][3:], data[1][3:]
    expected = _steps(mesh, state, rest)

    again = _trained(mesh, **options)
    loaded = mesh.load(again, tmp_path / "at 3")
    assert loaded["step"] == 3 and loaded["model"] is again["model"]
    assert _steps(mesh, again, rest) == expected

    line = mesh.slice(tp=0)  # another shape, and a module of another kind
    other = _trained(line, remote=True, out_spec=["dp"], parallelize=by_ddp)
    line.load(other, tmp_path / "at 3")
    assert _steps(line, other, rest) == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_is_readable_by_torch(mesh: Mesh, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    model = module_to_mesh(network(), mesh, _PLAN)
    t: Any = distribute(torch.arange(35.0).reshape(7, 5), mesh, [("dp", "tp")])
    mesh.save({"model": model, "more": [t, {"name": "x"}]}, tmp_path / "checkpoint")
    dcp_to_torch_save(tmp_path / "checkpoint", tmp_path / "one.pt")
    found = torch.load(tmp_path / "one.pt", weights_only=False)
    one = network()
    one.load_state_dict(found["model"])
    for parameter, other in zip(model.parameters(), one.parameters(), strict=True):
        assert torch.equal(parameter.full_tensor(), other)  # type: ignore[attr-defined]
    assert torch.equal(found["more"][0], torch.arange(35.0).reshape(7, 5)) and found["more"][1] == {"name": "x"}


def test_a_save_in_the_background_has_the_values_of_its_moment(mesh: Mesh, tmp_path: Path) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    saving = mesh.async_save({"t": t}, tmp_path / "one")
    t.add_(100)
    saving.wait()
    assert saving.done() and (tmp_path / "one" / ".metadata").exists()
    assert not [path for path in (tmp_path / "one").iterdir() if "writ" in path.name]
    mesh.load({"t": t}, tmp_path / "one")
    assert torch.equal(t.full_tensor(), torch.arange(8.0))


def test_what_cannot_be_saved_or_loaded_is_told_and_nothing_is_half_done(
    mesh: Mesh, grid: ProcMesh, tmp_path: Path
) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    with grid.activate():
        own = torch.ones(2)
    with pytest.raises(ValueError, match="each rank"):
        mesh.save({"own": own}, tmp_path / "x")
    with pytest.raises(TypeError, match="state"):
        mesh.save([t], tmp_path / "x")  # type: ignore[arg-type]
    mesh.save({"t": t, "n": 1}, tmp_path / "one")
    with pytest.raises(FileExistsError, match="has a checkpoint already"):
        mesh.save({"t": t}, tmp_path / "one")
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, RuntimeError)):
        mesh.save({"t": t}, tmp_path / "file" / "below")
    with pytest.raises((OSError, RuntimeError)):
        mesh.async_save({"t": t}, tmp_path / "file" / "below").wait()
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        mesh.load({"t": t}, tmp_path / "nothing")
    t.zero_()
    with pytest.raises(KeyError, match="lacks 'u'; it has: n, t"):
        mesh.load({"t": t, "u": t}, tmp_path / "one")
    with pytest.raises(ValueError, match=r"t is \(9,\), and \(8,\) in"):
        mesh.load({"t": mesh.zeros(9)}, tmp_path / "one")
    assert t.sum().item() == 0.0
    assert mesh.load({"n": None}, tmp_path / "one") == {"n": 1}
    mesh.sync()


def test_torch_loads_the_optimizer_too(mesh: Mesh, tmp_path: Path) -> None:
    inputs, targets = batches(2)
    model = module_to_mesh(network(), mesh, remote=True, out_spec=["dp"])
    optimizer = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-2)
    losses(model, optimizer, _sent(mesh, inputs), _sent(mesh, targets))
    state = optimizer.state_dict()
    assert state["state"][0]["exp_avg"].shape == (8, 6) and state["param_groups"][0]["lr"] == 1e-2
    again = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1.0)
    again.load_state_dict(state)
    assert again.param_groups[0]["lr"] == 1e-2
    same = again.state_dict()["state"]
    assert all(
        torch.equal(same[n]["exp_avg_sq"].full_tensor(), state["state"][n]["exp_avg_sq"].full_tensor()) for n in same
    )
