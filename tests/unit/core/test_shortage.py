"""Shortages of room on a disk, of a quota and of descriptors are named, with their place and the next step."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from monarch_hpc.core.storage import files
from monarch_hpc.core.storage.shortage import explained, full_note, shortage_note


def _error(number: int, *more: str) -> OSError:
    return OSError(number, os.strerror(number), *more)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (_error(errno.ENOSPC, "/here/file"), "the file system of /here/file is full: make room there, or use another"),
        (_error(errno.ENOSPC), "perhaps standard output's, is full: make room there"),
        (_error(errno.EDQUOT, "/here/file"), "your quota on the file system of /here/file is used up: make room"),
        (_error(errno.EMFILE), f"all {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} descriptors that the process may"),
        (_error(errno.ENFILE), "this machine has no descriptors left"),
        (_error(errno.EROFS, "/here/file"), "the file system of /here/file is read-only here: use another place"),
    ],
    ids=["disk", "output", "quota", "descriptors", "machine", "read-only"],
)
def test_a_shortage_has_a_next_step(error: OSError, words: str) -> None:
    assert words in shortage_note(error)


@pytest.mark.parametrize("error", [_error(errno.EACCES, "/here/file"), ValueError("28"), OSError("no number")])
def test_what_is_no_shortage_has_none(error: Exception) -> None:
    assert shortage_note(error) == ""


def test_an_error_is_explained_once_and_keeps_the_file_that_it_names(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inner") as raised, explained(tmp_path / "outer"), explained(tmp_path / "inner"):
        raise _error(errno.ENOSPC)
    assert raised.value.filename == str(tmp_path / "inner")
    assert raised.value.__notes__ == [shortage_note(raised.value)]


def test_a_bare_name_in_an_open_folder_becomes_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Read-only") as raised, explained(tmp_path / "state"):
        raise _error(errno.EROFS, ".state.0a1b2c")
    assert raised.value.filename == str(tmp_path / "state")
    assert f"of {tmp_path / 'state'} is read-only here" in raised.value.__notes__[0]


def test_a_full_disk_is_named_by_who_writes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"

    def refuse(_descriptor: int) -> None:
        raise _error(errno.ENOSPC)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=r"No space left on device: '.*record.json'") as raised:
        files.write_private(path, b"data")
    assert f"the file system of {path} is full: make room there" in raised.value.__notes__[0]


def test_only_a_place_without_room_is_full(tmp_path: Path) -> None:
    assert full_note(tmp_path) == "" == full_note(tmp_path / "missing") == full_note(Path("/proc"))
