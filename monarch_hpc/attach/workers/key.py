"""The key shared by manually started workers and the programs that attach to them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import private_dir, read_private, write_once

__all__ = ["Secret", "read_secret"]

Secret = bytes | str | Path | None
"""The key itself, or a file that holds it; None for the user's own, in the state directory."""

_MIN_BYTES = 16
_MAX_BYTES = 64 << 10
_RANDOM_BYTES = 32
_FILE = "worker.key"
_PURPOSE = b"monarch-hpc worker"
_HEX = frozenset(b"0123456789abcdef")

# scrypt costs a tenth of a second and 32 MiB for each guess: as much as a worker on a busy login node can spare once.
_COST = 1 << 15
_BLOCK = 8
_MAX_DERIVATION_BYTES = 64 << 20


def read_secret(secret: Secret, state: Path) -> bytes:
    """Return the 32-byte key that both sides prove to hold.

    Args:
        secret: bytes are the key; a string or path names a file of mode 0600 that holds it, such as a PEM file. 32
            random bytes, also as hexadecimal digits, are best. Text that may be a passphrase is stretched with scrypt,
            which takes a tenth of a second, so that a recorded greeting is of little help for guessing it. None
            stands for ``worker.key`` in the state directory, which is created on first use.
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
    if _is_random(secret):
        return hashlib.sha256(_PURPOSE + b"\0" + secret).digest()
    # A constant salt, because the two sides share nothing but the secret before the handshake.
    return hashlib.scrypt(secret, salt=_PURPOSE, n=_COST, r=_BLOCK, p=1, maxmem=_MAX_DERIVATION_BYTES, dklen=32)


def _is_random(secret: bytes) -> bool:
    """Whether *secret* cannot be a passphrase: as in `worker.key`, or at least 32 bytes that are not UTF-8."""
    if len(secret) == 2 * _RANDOM_BYTES and _HEX.issuperset(secret):
        return True
    try:
        secret.decode()
    except UnicodeDecodeError:
        return len(secret) >= _RANDOM_BYTES
    return False


def _own(state: Path) -> Path:
    path = private_dir(state) / _FILE
    if not path.exists():
        write_once(path, os.urandom(_RANDOM_BYTES).hex().encode())
    return path
