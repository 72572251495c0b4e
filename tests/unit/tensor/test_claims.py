"""Of several saves into one folder the last one to begin completes its checkpoint, whatever process each is in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import read_own
from monarch_hpc.tensor.worker.training import claims
from monarch_hpc.tensor.worker.training.claims import Claim, NewFiles, write_part


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


def test_a_save_writes_through_no_link_that_others_have_put_in_its_way(tmp_path: Path) -> None:
    folder, precious = tmp_path / "checkpoint", tmp_path / "precious"
    precious.write_bytes(b"mine")
    claim = Claim(folder)
    for files in (claim, NewFiles()):
        part = folder / f"__{files is claim}_{claim.name}_0.distcp"
        part.symlink_to(precious)
        with pytest.raises(FileExistsError), files.create_stream(part, "wb"):
            pass
    with pytest.raises(FileExistsError):
        write_part(part, b"pickle")
    (own,) = folder.glob(".metadata-*.tmp")
    own.unlink()
    own.symlink_to(precious)
    with pytest.raises(OSError, match=own.name), claim.create_stream(folder / ".metadata.tmp", "wb"):
        pass
    own.unlink()
    own.hardlink_to(precious)
    with (
        pytest.raises(FileExistsError, match="has been exchanged"),
        claim.create_stream(folder / ".metadata.tmp", "wb"),
    ):
        pass
    claim.end()
    assert precious.read_bytes() == b"mine"


def test_pickles_between_ranks_are_written_by_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_part(tmp_path / "part", b"pickle")
        with NewFiles().create_stream(tmp_path / "shard", "wb") as shard:
            shard.write(b"numbers")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("part", "shard")]
    assert modes == [0o600, 0o666]  # the checkpoint itself is for whom the umask lets read it
    assert read_own(tmp_path / "part") == b"pickle"
    with pytest.raises(ConfigError, match="may be written by others"):
        read_own(tmp_path / "shard")
