"""Files that hold state or secrets: written whole or not at all, readable by their owner only.

The one home of that rule, so that a full disk, a crash or another user can never leave us with half
a record, a key that others can read, or a record that others wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

from monarch_hpc.core.errors import ConfigError

__all__ = ["private_dir", "read_json", "read_private", "write_json", "write_private"]

# The largest record is an allocation's ready file: about 400 bytes for each of 10 000 hosts.
_MAX_JSON_BYTES = 16 << 20


def private_dir(path: Path) -> Path:
    """Return *path* as a directory that only we can enter, made where it is missing (0700).

    Raises:
        ConfigError: it exists and is a link, not a directory, another user's, or open to others.
            It is not repaired: while it was open, others may have put anything into it.
    """
    if not path.parent.exists():
        private_dir(path.parent)
    # Two processes may make it at once; whoever made it, it is checked below.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise _refused(path, "is a symbolic link; name the directory that it points to")
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(path, "is not a directory; move it away or configure another place")
    _check_owner(path, found, "chmod 700")
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write *data* to *path*, mode 0600, so that readers see the old content or all of the new.

    Raises:
        OSError: the system refused; the old content is still there.
    """
    # Not tempfile: its import costs more than all of this, and os.urandom is all it would add.
    scratch = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    _sync_directory(path.parent)


def write_json(path: Path, obj: object) -> None:
    """Write *obj* as JSON with the guarantees of `write_private`."""
    write_private(path, json.dumps(obj, indent=1, allow_nan=False).encode() + b"\n")


def read_private(path: Path, max_bytes: int) -> bytes:
    """Read a file that nobody but us can have written or read.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it is a link, no regular file, another user's, open to others, or larger than *max_bytes*.
    """
    try:
        # An opener, not os.open: `open` closes its descriptor where it then refuses a directory.
        file = open(path, "rb", opener=_open_strictly)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = "is a symbolic link" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise _refused(path, problem) from error
    with file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _refused(path, "is not a regular file")
        _check_owner(path, found, "chmod 600")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _refused(path, f"is larger than {max_bytes} bytes")
    return data


def read_json(path: Path) -> object:
    """Read what `write_json` wrote, with the checks of `read_private`.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file is refused, or is not JSON.
    """
    try:
        parsed: object = json.loads(read_private(path, _MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"is not JSON ({error}); it was written by another program, or damaged") from error
    return parsed


def _open_strictly(path: str, flags: int) -> int:
    # O_NONBLOCK: opening a FIFO that somebody put there must not hang.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _check_owner(path: Path, found: os.stat_result, cure: str) -> None:
    if found.st_uid != os.geteuid():
        raise _refused(path, f"belongs to user id {found.st_uid}, not to you ({os.geteuid()}); it is not used")
    if found.st_mode & 0o077:
        raise _refused(
            path,
            f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"look at what is in it, then run '{cure} {path}'",
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(path: Path, problem: str) -> ConfigError:
    return ConfigError("", "", str(path), problem)
