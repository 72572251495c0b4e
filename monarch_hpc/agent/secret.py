"""The key that workers started by hand and the programs that attach to them share."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import private_dir, read_private, write_once

__all__ = ["Secret", "read_secret"]

Secret = bytes | str | Path | None
"""The key itself, or a file with it; None for the user's own, in the state directory."""

_MIN_BYTES = 16
_MAX_BYTES = 64 << 10
_OWN_BYTES = 32
_FILE = "worker.key"


def read_secret(secret: Secret, state: Path) -> bytes:
    """The 32 bytes that both sides prove to have.

    Args:
        secret: bytes are the key, text and paths name a file of mode 0600 that holds it, a PEM file for one. None
            takes ``worker.key`` of the state directory, which is made at the first use.
        state: the state directory, config key `paths.state`.

    Raises:
        ConfigError: the file is missing or open to others, or the key is shorter than 16 bytes.
    """
    source = "private_key"
    if secret is None:
        secret = _own(state)
    if isinstance(secret, (str, Path)):
        source = str(secret)
        try:
            secret = read_private(Path(secret), _MAX_BYTES)
        except FileNotFoundError as error:
            raise ConfigError(
                "", "", source, "there is no such file; private_key names one with the key in it"
            ) from error
    if len(secret) < _MIN_BYTES:
        raise ConfigError("", "", source, f"a key of {len(secret)} bytes can be guessed: take {_MIN_BYTES} or more")
    return hashlib.sha256(b"monarch-hpc worker\0" + secret).digest()


def _own(state: Path) -> Path:
    path = private_dir(state) / _FILE
    if not path.exists():
        write_once(path, os.urandom(_OWN_BYTES).hex().encode())
    return path
