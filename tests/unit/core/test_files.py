from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import (
    check_writable,
    private_dir,
    read_json,
    read_own,
    read_private,
    write_json,
    write_private,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_private_dir_makes_every_missing_parent_private(tmp_path: Path) -> None:
    made = private_dir(tmp_path / "a" / "b")
    assert made == tmp_path / "a" / "b"
    assert (mode(made), mode(made.parent)) == (0o700, 0o700)


def test_private_dir_ignores_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert mode(private_dir(tmp_path / "a")) == 0o700
    finally:
        os.umask(old)


def test_private_dir_accepts_what_it_made(tmp_path: Path) -> None:
    assert private_dir(private_dir(tmp_path / "a")) == tmp_path / "a"


def test_private_dir_refuses_what_others_can_enter(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"open to other users \(mode 0755\).*chmod 700"):
        private_dir(tmp_path / "a")


def test_private_dir_refuses_a_link_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="symbolic link"):
        private_dir(tmp_path / "link")
    with pytest.raises(ConfigError, match="not a directory"):
        private_dir(tmp_path / "file")


def test_written_files_are_private_and_replace_the_old_whole(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"schema": 1, "name": "old", "long": "x" * 1000})
    write_json(path, {"schema": 1, "name": "new"})
    assert read_json(path) == {"schema": 1, "name": "new"}
    assert mode(path) == 0o600
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.parametrize("refusing", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_state_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"name": "old"})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, refusing, full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"name": "new"})
    monkeypatch.undo()
    assert read_json(path) == {"name": "old"}
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_number_that_json_does_not_have_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "record.json", float("nan"))
    assert os.listdir(tmp_path) == []


def test_a_missing_file_is_its_own_answer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "record.json")


def test_what_others_may_have_read_or_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private(path, b"secret")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"key: is open to other users \(mode 0640\)"):
        read_private(path, 100)


def test_another_users_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    write_private(path, b"secret")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user id {owner}, not to you"):
        read_private(path, 100)


def test_links_and_pipes_are_refused_and_never_waited_for(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"secret")
    (tmp_path / "link").symlink_to("key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        read_private(tmp_path / "folder", 100)
    with pytest.raises(ConfigError, match="symbolic link"):
        read_private(tmp_path / "link", 100)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_private(tmp_path / "pipe", 100)


def test_in_a_folder_of_a_group_only_files_of_this_user_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    path = tmp_path / "part"
    path.write_bytes(b"own")
    path.chmod(0o644)
    assert read_own(path) == b"own"
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="link"):
        read_own(link)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_own(pipe)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to user id"):
        read_own(path)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"x" * 33)
    assert read_private(tmp_path / "key", 33) == b"x" * 33
    with pytest.raises(ConfigError, match="larger than 32 bytes"):
        read_private(tmp_path / "key", 32)


@pytest.mark.parametrize("text", [b"", b'{"name": ', b"\xff\xfe", b"[" * 100_000])
def test_damaged_json_is_an_error_that_names_the_file(tmp_path: Path, text: bytes) -> None:
    write_private(tmp_path / "record.json", text)
    with pytest.raises(ConfigError, match=r"record\.json: is not JSON"):
        read_json(tmp_path / "record.json")


def test_a_check_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    check_writable(tmp_path / "kept")
    check_writable(tmp_path / "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "as it was")]
    with pytest.raises(FileNotFoundError):
        check_writable(tmp_path / "missing" / "new")
    with pytest.raises(NotADirectoryError):
        check_writable(tmp_path / "kept" / "new")
