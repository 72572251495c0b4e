"""Of several saves into one folder the last one to begin completes its checkpoint, whatever process each is in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from monarch_hpc.tensor.worker.training import claims
from monarch_hpc.tensor.worker.training.claims import Claim


def in_another_process(folder: Path, patch: pytest.MonkeyPatch) -> Claim:
    """A claim of a process that knows of no other one."""
    patch.setattr(claims, "_WRITING", set())
    return Claim(folder)


def complete(claim: Claim, folder: Path, name: str) -> None:
    writer = FileSystemWriter(folder)
    writer.fs = claim
    writer.finish(Metadata({name: None}), [])  # type: ignore[dict-item]
    claim.end()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_save_that_has_lost_its_folder_cannot_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = in_another_process(tmp_path, monkeypatch)
    second = in_another_process(tmp_path, monkeypatch)
    with pytest.raises(FileExistsError, match="is being written by another save, which began later"):
        complete(first, tmp_path, "first")
    assert not (tmp_path / ".metadata").exists()
    complete(second, tmp_path, "second")
    assert names_in(tmp_path) == [".metadata"]
    assert b"second" in (tmp_path / ".metadata").read_bytes()


def test_nor_between_its_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = in_another_process(tmp_path, monkeypatch)
    with first.create_stream(tmp_path / ".metadata.tmp", "wb"):
        second = in_another_process(tmp_path, monkeypatch)
    complete(second, tmp_path, "second")
    with pytest.raises(FileExistsError, match="another save"):
        first.rename(tmp_path / ".metadata.tmp", tmp_path / ".metadata")
    assert b"second" in (tmp_path / ".metadata").read_bytes()


def test_a_save_that_completes_while_another_one_begins_keeps_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_another_process(tmp_path, monkeypatch)
    part = tmp_path / f"__0_{first.name}_0.distcp"
    part.touch()
    unlink = Path.unlink

    def completing(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(".tmp") and path.exists():
            path.rename(tmp_path / ".metadata")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", completing)
    with pytest.raises(FileExistsError, match="has a checkpoint already"):
        in_another_process(tmp_path, monkeypatch)
    assert names_in(tmp_path) == [".metadata", part.name]
