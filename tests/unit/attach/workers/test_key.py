"""The key of manually started workers."""

from __future__ import annotations

import hashlib
import stat
import time
from pathlib import Path

import pytest

from monarch_hpc.attach.workers.key import read_secret
from monarch_hpc.core.errors import ConfigError


def test_a_user_has_one_key_which_others_cannot_read(tmp_path: Path) -> None:
    first = read_secret(None, tmp_path / "state")
    assert len(first) == 32 and read_secret(None, tmp_path / "state") == first
    path = tmp_path / "state" / "worker.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["worker.key"]
    assert read_secret(None, tmp_path / "other") != first


def test_bytes_and_files_are_keys(tmp_path: Path) -> None:
    secret = bytes(range(0xC0, 0xE0))
    path = tmp_path / "key.pem"
    path.write_bytes(secret)
    path.chmod(0o600)
    key = read_secret(secret, tmp_path)
    assert read_secret(path, tmp_path) == read_secret(str(path), tmp_path) == key
    assert read_secret(secret[::-1], tmp_path) != key


@pytest.mark.slow
@pytest.mark.parametrize("secret", [b"my-project-key-17123", "schlüssel des projektes".encode() * 2, b"k" * 32])
def test_a_guess_at_a_text_costs_time(tmp_path: Path, secret: bytes) -> None:
    """An attacker who has recorded a greeting can guess texts offline, on any number of processors."""
    begun_s = time.process_time()
    key = read_secret(secret, tmp_path)
    assert len(key) == 32 and time.process_time() - begun_s > 0.02


def test_random_keys_are_taken_at_once(tmp_path: Path) -> None:
    begun_s = time.process_time()
    for number in range(20):
        read_secret(hashlib.sha256(bytes([number])).digest(), tmp_path)
        read_secret(hashlib.sha256(bytes([number])).hexdigest().encode(), tmp_path)
    assert time.process_time() - begun_s < 0.2, "the key of a user who gave none must not delay each program"


def test_a_key_that_others_may_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(ConfigError, match="no such file"):
        read_secret(path, tmp_path)
    path.write_bytes(b"0123456789abcdef")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to other users"):
        read_secret(path, tmp_path)
    with pytest.raises(ConfigError, match="can be guessed"):
        read_secret(b"short", tmp_path)
