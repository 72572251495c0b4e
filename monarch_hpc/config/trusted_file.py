"""Configuration files written by hand: read only if no other user may have written them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.ownership import others_may_write

__all__ = ["read_trusted"]

# Files written by hand have a hundred lines at most; a larger one is a mistake, such as a link to a log.
_MAX_FILE_BYTES = 64 << 10


def read_trusted(path: Path) -> str | None:
    """Return the text of a file of this user or root; None if it does not exist.

    Raises:
        ConfigError: it is not a regular file of UTF-8 text, is too large, or another user may have written it.
    """
    try:
        # O_NONBLOCK: a FIFO by this name must not hang every command.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1) if stat.S_ISREG(found.st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError("", "", str(path), f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError("", "", str(path), "is not a regular file")
    if found.st_uid not in (0, os.geteuid()) or others_may_write(found):
        whose = f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}, group id {found.st_gid}"
        cure = f"look at what is in it, then make it yours and run 'chmod go-w {path}', or move it away"
        problem = f"was or may have been written by another user ({whose}); {cure}"
        raise ConfigError("", "", str(path), problem)
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError("", "", str(path), f"is larger than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("", "", str(path), "is not UTF-8 text") from error
