"""Checkpoints of meshes: complete or not there, onto other shapes, readable by torch, asynchronous."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import threading
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


def test_files_that_are_not_regular_are_refused_by_name(mesh: Mesh, tmp_path: Path) -> None:
    """A pipe would be waited for, and a link followed to what somebody else needs."""
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("__0_0.distcp", ".metadata.tmp"):
        folder = tmp_path / f"pipe {name}"
        folder.mkdir()
        os.mkfifo(folder / name)
        with pytest.raises(FileExistsError, match=f"{re.escape(name)} is not a regular file: remove it"):
            mesh.save({"t": t}, folder)
    folder = tmp_path / "link"
    folder.mkdir()
    (folder / "__0_0.distcp").symlink_to(precious)
    with pytest.raises(FileExistsError, match="is not a regular file"):
        mesh.async_save({"t": t}, folder).wait()
    assert precious.read_text() == "mine"

    for number, kind in enumerate((".metadata", "__0_*.distcp")):
        folder = tmp_path / f"saved {number}"
        mesh.save({"t": t}, folder)
        name = next(folder.glob(kind)).name
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(OSError, match=f"{re.escape(name)} is not a regular file, and so no part of a checkpoint"):
            mesh.load({"t": t}, folder)
    mesh.sync()


def test_a_damaged_checkpoint_is_named(mesh: Mesh, tmp_path: Path) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    for kind in (".metadata", "__0_*.distcp"):
        folder = tmp_path / kind[:4]
        mesh.save({"t": t, "n": [1]}, folder)
        name = next(folder.glob(kind)).name
        os.truncate(folder / name, 5)
        with pytest.raises(
            OSError, match=f"{re.escape(str(folder))}.* is damaged, or not of a checkpoint: .*; load an"
        ):
            mesh.load({"t": t}, folder)
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(name)):
            mesh.load({"t": t}, folder)
    mesh.sync()


def test_what_a_killed_save_has_left_does_not_complete_the_next_one(mesh: Mesh, tmp_path: Path) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    mesh.save({"t": t}, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    for rank in range(mesh.size()):
        for name in (f".written-{rank}", f".written-0123456789abcdef-{rank}", f".writing-0123456789abcdef-{rank}"):
            (folder / name).write_bytes(pickle.dumps("the disk was full"))
        for name in (f"__{rank}_0.distcp", f"__{rank}_0123456789abcdef_0.distcp", ".metadata-0123456789abcdef.tmp"):
            (folder / name).write_bytes(b"half")
    mesh.save({"t": t}, folder)
    assert _kinds(folder) == _kinds(tmp_path / "whole")
    t.zero_()
    mesh.load({"t": t}, folder)
    assert torch.equal(t.full_tensor(), torch.arange(8.0))


def _kinds(folder: Path) -> list[str]:
    """The names of its files, without what only one save has in them."""
    return sorted(re.sub(r"_[0-9a-f]{16}_", "_", path.name) for path in folder.iterdir())


def test_two_saves_do_not_share_a_folder(mesh: Mesh, tmp_path: Path) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    saving = mesh.async_save({"t": t, "slow": _Slow(str(gate))}, tmp_path / "one")
    with pytest.raises(FileExistsError, match="is being written by a save that is not done: wait for it"):
        mesh.save({"t": t}, tmp_path / "one")
    with open(gate, "w"):
        pass
    saving.wait()
    with pytest.raises(FileExistsError, match="has a checkpoint already"):
        mesh.save({"t": t}, tmp_path / "one")


class _Slow:
    """Is not saved before somebody opens a pipe; in a thread of a rank, where it is pickled for the file."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        if threading.current_thread().name == "checkpoint":
            with open(self.gate):
                pass
        return _Slow, (self.gate,)


def test_a_full_disk_ends_a_save_with_its_reason(mesh: Mesh, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("needs to mount a file system")
    try:
        t: Any = distribute(torch.zeros(1 << 16), mesh, ["dp"])
        for save in (mesh.save, lambda state, path: mesh.async_save(state, path).wait()):
            with pytest.raises(OSError, match=r"No space left|disk is full|file write failed|PytorchStreamWriter"):
                save({"t": t}, disk / "one")
            assert not (disk / "one" / ".metadata").exists()
        with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
            mesh.load({"t": t}, disk / "one")
        mesh.sync()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("name", ["a\nb", "b\udcff", "c d'\"$(x)"], ids=["newline", "not UTF-8", "shell"])
def test_odd_names_are_names(mesh: Mesh, tmp_path: Path, name: str) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    mesh.save({"t": t}, tmp_path / name)
    t.zero_()
    mesh.load({"t": t}, tmp_path / name)
    assert torch.equal(t.full_tensor(), torch.arange(8.0))
    with pytest.raises(FileExistsError, match="has a checkpoint already"):
        mesh.save({"t": t}, tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        mesh.load({"t": t}, tmp_path / f"{name}2")


def test_what_is_not_a_path_is_refused_here(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t: Any = distribute(torch.arange(8.0), mesh, ["dp"])
    path: Any
    for path, error in ((b"x", TypeError), (None, TypeError), ("", ValueError), ("a\0b", ValueError)):
        for use in (mesh.save, mesh.async_save, mesh.load):
            with pytest.raises(error, match="path"):
                use({"t": t}, path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError, match=r"working folder has been deleted.*: 'here'"):
        mesh.save({"t": t}, "here")


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
