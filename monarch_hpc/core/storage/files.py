"""Reads and writes files that hold state or secrets: written whole or not at all, readable by their owner only.

All such files go through this module, so that a full disk, a crash or another user can never leave half a record, a key
that others can read, or a record that others wrote.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.ownership import others_may_write, shared_folder, trusted_owner, unsafe_folder
from monarch_hpc.core.storage.shortage import explained, shortage_note

__all__ = [
    "NEW_FILE",
    "check_writable",
    "open_folder",
    "open_output",
    "own_folder",
    "private_dir",
    "read_json",
    "read_own",
    "read_private",
    "write_json",
    "write_once",
    "write_private",
]

# The largest record is an allocation's ready file: about 400 bytes for each of 10 000 hosts.
_MAX_JSON_BYTES = 16 << 20

_MAX_LINKS = 40
"""Symbolic links followed in the path of a folder: as many as the kernel follows."""

NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a file which is not there yet, not even as a link that somebody has made."""

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def private_dir(path: Path) -> Path:
    """Return *path* as a directory that only its owner can enter; it is made (0700) if it is missing.

    Raises:
        ConfigError: *path* is a link, not a directory, another user's, or open to others; or it leads through another
            user's link. The mode is not repaired: while it was open, others may have put anything into the directory.
    """
    try:
        with explained(path):
            folder = open_folder(path, make=True)
    except NotADirectoryError as error:
        raise _refused(path, "is not a directory; move it away or configure another place") from error
    try:
        _check_owner(path, os.fstat(folder), "chmod 700")
    finally:
        os.close(folder)
    return path


def own_folder(path: Path) -> Path:
    """Return *path* as a folder into which no other user can put files; it is made (0700) if it is missing.

    Others may read it, and it may be a link of this user.

    Raises:
        ConfigError: it is another user's, or others may write it, even with the sticky bit; or it leads through another
            user's link. The mode is not repaired: others may have put anything into the folder.
        OSError: the system refused.
    """
    with explained(path):
        folder = open_folder(path, make=True, follow=True)
    try:
        if problem := shared_folder(os.fstat(folder)):
            raise _refused(path, f"{problem}; {_cure(path)}")
    finally:
        os.close(folder)
    return path


def open_folder(path: Path, *, make: bool = False, follow: bool = False) -> int:
    """Open a folder, for use as ``dir_fd`` only; the caller closes it.

    Each component of the path is opened separately, so that nothing can be exchanged between its check and its use.

    Args:
        make: make missing folders (0700).
        follow: accept a link as the folder itself, if it belongs to this user or root.

    Raises:
        FileNotFoundError: the folder is missing.
        ConfigError: it is a link, or its path leads through a link that belongs neither to this user nor to root.
        OSError: the system refused.
    """
    left = [*reversed(path.parts)]
    num_links = 0
    at = os.open(".", _FOLDER)
    try:
        while left:
            part = left.pop()
            step = _open_step(part, at, make=make)
            try:
                found = os.fstat(step)
                if stat.S_ISLNK(found.st_mode):
                    num_links += 1
                    if not left and not follow:
                        raise _refused(path, "is a symbolic link; name the directory that it points to")
                    if not trusted_owner(found.st_uid):
                        raise _refused(path, f"the link {part} on the way to it belongs to user id {found.st_uid}")
                    if num_links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                    left += reversed(Path(os.readlink("", dir_fd=step)).parts)
                elif not stat.S_ISDIR(found.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
                else:
                    at, step = step, at
            finally:
                os.close(step)
    except BaseException:
        os.close(at)
        raise
    return at


def write_private(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write *data* to *path*, mode 0600, so that readers see the old content or all of the new.

    Args:
        durable: whether that holds after a crash of the machine, too. It takes two waits for the disk.

    Raises:
        ConfigError: other users may exchange files in the folder, see `open_folder` and `unsafe_folder`.
        OSError: the system refused; the old content is still there.
    """
    with explained(path), _safe_folder(path) as folder:
        # Not tempfile: its import costs more than all of this, and os.urandom is all it would add.
        scratch = f".{path.name}.{os.urandom(6).hex()}"
        flags = os.O_WRONLY | NEW_FILE
        descriptor = os.open(scratch, flags, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(scratch, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch, dir_fd=folder)
            raise
        if durable:
            _sync_directory(folder)


def check_writable(path: Path) -> None:
    """Check that `write_private` can write *path*, by making another file in its folder and removing it.

    Raises:
        ConfigError: other users may exchange files in the folder, see `write_private`.
        OSError: the folder is missing or cannot be written.
    """
    # os.access would not do: it knows neither quotas, nor a server that maps root to nobody, nor /proc.
    scratch = f".{path.name}.{os.urandom(6).hex()}"
    with explained(path), _safe_folder(path) as folder:
        os.close(os.open(scratch, os.O_WRONLY | NEW_FILE, 0o600, dir_fd=folder))
        os.unlink(scratch, dir_fd=folder)


def write_once(path: Path, data: bytes) -> None:
    """Write *data* to *path* as `write_private` does unless the file exists: among several writers the first wins."""
    scratch = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    write_private(scratch, data)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.unlink(scratch)


def open_output(path: Path) -> int:
    """Open a file for the output of a process, empty and 0600; the caller closes it.

    Raises:
        ConfigError: other users may exchange files in the folder, or the file is a link, not a regular file, another
            user's, or has a second name.
        OSError: the system refused.
    """
    with explained(path), _safe_folder(path, make=True) as folder:
        # O_TRUNC would empty the file before its owner and names are checked. O_NONBLOCK: opening a FIFO must not hang.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
        except OSError as error:
            step = shortage_note(OSError(error.errno, error.strerror, str(path)))
            problem = f"cannot be written: {error.strerror}{f'; {step}' if step else ''}"
            raise _refused(path, "is a symbolic link" if error.errno == errno.ELOOP else problem) from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _refused(path, "is not a regular file")
            if found.st_uid != os.geteuid() or found.st_nlink != 1:
                whose = f"belongs to user id {found.st_uid} and has {found.st_nlink} names"
                raise _refused(path, f"{whose}; it is not overwritten: remove it")
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
            os.set_blocking(descriptor, True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def write_json(path: Path, obj: object, *, durable: bool = True) -> None:
    """Write *obj* as JSON with the guarantees of `write_private`."""
    import json  # late: a program makes the folder of its agent before it needs this

    write_private(path, json.dumps(obj, indent=1, allow_nan=False).encode() + b"\n", durable=durable)


def read_private(path: Path, max_bytes: int) -> bytes:
    """Read a file that no other user can have written or read.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file is a link, not a regular file, another user's, open to others, or larger than *max_bytes*;
            or others may exchange files in its folder.
    """
    try:
        # An opener instead of os.open: `open` closes the descriptor if it then refuses a directory.
        with _safe_folder(path) as folder:
            file = open(path.name, "rb", opener=functools.partial(_open_strictly, folder))
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
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


def read_own(path: Path) -> bytes:
    """Read a file that only this user can have written, in a folder in which others may exchange files.

    Raises:
        ConfigError: it is another user's, others may write it, or it is not a regular file.
        OSError: it cannot be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(path, "rb", opener=lambda name, _flags: os.open(name, flags)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _refused(path, "is not a regular file")
        if found.st_uid != os.geteuid():
            raise _refused(path, f"belongs to user id {found.st_uid}, not to you ({os.geteuid()}); it is not used")
        if others_may_write(found):
            raise _refused(path, f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o}); it is not used")
        return file.read()


def read_json(path: Path) -> object:
    """Read a file written by `write_json`, with the checks of `read_private`.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file is refused, or is not JSON.
    """
    import json  # likewise

    try:
        parsed: object = json.loads(read_private(path, _MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"is not JSON ({error}); it was written by another program, or damaged") from error
    return parsed


@contextlib.contextmanager
def _safe_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open the folder of a file; refuse it if other users can exchange files there."""
    folder = open_folder(path.parent, make=make)
    try:
        if problem := unsafe_folder(os.fstat(folder)):
            raise _refused(path.parent, f"{problem}; {_cure(path.parent)}")
        yield folder
    finally:
        os.close(folder)


def _open_step(part: str, at: int, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileNotFoundError):
            return os.open(part, _STEP, dir_fd=at)
        # Two processes may make it at once; the caller checks it in either case.
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o700, dir_fd=at)
    return os.open(part, _STEP, dir_fd=at)


def _open_strictly(folder: int, name: str, flags: int) -> int:
    # O_NONBLOCK: opening a FIFO must not hang.
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)


def _check_owner(path: Path, found: os.stat_result, cure: str) -> None:
    if found.st_uid != os.geteuid():
        raise _refused(path, f"belongs to user id {found.st_uid}, not to you ({os.geteuid()}); it is not used")
    if found.st_mode & 0o077:
        raise _refused(
            path,
            f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"look at what is in it, then run '{cure} {path}'",
        )


def _sync_directory(folder: int) -> None:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cure(folder: Path) -> str:
    return f"look at what is in it, then run 'chmod go-w {folder}', or use a folder of your own"


def _refused(path: Path, problem: str) -> ConfigError:
    return ConfigError("", "", str(path), problem)
