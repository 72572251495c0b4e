"""Segments: memory that other processes of this user on this host can map, and that has no name in any file system.

A segment is a memfd. A process that was given its span opens it through ``/proc/PID/fd`` of the process that holds it,
which the kernel allows to processes of the same user only. So the memory is freed when the last process that has it
ends, however that ends, and there is no socket, file or name to clean up. Its size is sealed, so that no access to a
mapping of it can fail with SIGBUS; see docs/design/0011-shared-memory-without-a-name.md.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import enum
import errno
import fcntl
import functools
import mmap
import os
import struct
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.machine.place import read_place

__all__ = [
    "SPAN_BYTES",
    "Access",
    "Span",
    "create",
    "create_parts",
    "find",
    "fix",
    "hold_spans",
    "open_span",
    "open_spans",
    "place_digest",
    "write_fixed",
]

_SPAN = struct.Struct("<8sII16sQQ")  # place, pid, fd, tag, offset, nbytes
SPAN_BYTES = _SPAN.size

_SEAL_FUTURE_WRITE = 0x10
_NOEXEC_SEAL = 0x8
_NORESERVE = 0x4000  # MAP_NORESERVE: what is never written needs no memory of its own
_KEEPS_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_FAILED = ctypes.c_void_p(-1).value
_ALIGNMENT = 64
"""Of the parts of a segment: a cache line, and a multiple of the alignment of any element."""
_WRITE_BYTES = 64 << 20
"""So much is written in one call, between which other threads and signals get their turn."""

_libc = ctypes.CDLL(None, use_errno=True)
_mmap: Any = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_munmap: Any = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Access(enum.Enum):
    """How a process maps memory that it was given."""

    READ = "read"
    WRITE = "write"
    PRIVATE = "private"  # writable: what is written becomes a copy of this process, page by page


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a segment, as described to other processes.

    Attributes:
        place: a digest of `core.machine.place.read_place` of the process that holds it.
        pid, fd: that process, and its open file.
        tag: random bytes in the file's name, which distinguish it from any other file.
    """

    place: bytes
    pid: int
    fd: int
    tag: bytes
    offset: int
    num_bytes: int

    def pack(self) -> bytes:
        """Render it, in `SPAN_BYTES`."""
        return _SPAN.pack(self.place, self.pid, self.fd, self.tag, self.offset, self.num_bytes)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what `pack` rendered.

        Raises:
            ValueError: *data* has another size.
        """
        if len(data) != SPAN_BYTES:
            raise ValueError(f"{len(data)} bytes describe no shared memory")
        return cls(*_SPAN.unpack(data))

    @property
    def near(self) -> bool:
        """Whether it lies on this host, with a process of this user in the same PID namespace."""
        return bool(self.place.strip(b"\0")) and self.place == place_digest()


@dataclass(slots=True, eq=False)
class _Held:
    """A mapped segment whose file this process keeps open.

    Attributes:
        fixed: it is no longer written to.
    """

    first: int
    end: int
    fd: int
    tag: bytes
    fixed: bool


_held: list[_Held] = []  # sorted by address
_lock = allocate_lock()  # guards the list
_gone: deque[tuple[int, int, _Held | None]] = deque()  # mappings without views, which are still mapped


def create(num_bytes: int) -> memoryview:
    """Return new memory, zeroed, that other processes can map; it is freed when the last view of it is gone.

    Raises:
        OSError: there is none, or no file can be opened.
    """
    tag = os.urandom(16)
    fd = _new_file(tag, num_bytes)
    return _map(fd, tag, num_bytes, Access.WRITE, keep=True, fixed=False)


def create_parts(sizes: Sequence[int]) -> list[memoryview]:
    """Return parts of one new segment, of *sizes* in bytes; otherwise as `create`."""
    places, num_bytes = _layout(sizes)
    memory = create(num_bytes)
    return [memory[place : place + size] for place, size in zip(places, sizes, strict=True)]


def write_fixed(parts: Sequence[memoryview]) -> list[memoryview]:
    """Return views of copies of *parts*, which are flat, in one new segment, which is sealed against writes.

    Raises:
        OSError: there is no memory for them, or no file can be opened.
    """
    places, num_bytes = _layout([part.nbytes for part in parts])
    tag = os.urandom(16)
    fd = _new_file(tag, num_bytes)
    try:
        for part, place in zip(parts, places, strict=True):
            _write(fd, part, place)
        _seal(fd, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    view = _map(fd, tag, num_bytes, Access.READ, keep=True, fixed=True)
    return [view[place : place + part.nbytes] for part, place in zip(parts, places, strict=True)]


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each part of a segment begins, and the size of the whole."""
    places = []
    end = 0
    for size in sizes:
        places.append(end)
        end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
    return places, max(end, 1)


def find(address: int, num_bytes: int, *, fixed: bool) -> Span | None:
    """The span of memory of this process, if it lies in a segment that it holds.

    Args:
        fixed: whether to look for memory that is no longer written to, or for other segments.
    """
    held = _holder(address)
    if held is None or address + num_bytes > held.end or held.fixed is not fixed:
        return None
    return Span(place_digest(), os.getpid(), held.fd, held.tag, address - held.first, num_bytes)


def _holder(address: int) -> _Held | None:
    with _lock:
        place = bisect.bisect(_held, address, key=lambda held: held.first) - 1
        held = _held[place] if place >= 0 else None
    _unmap_gone()
    return held if held is not None and address <= held.end else None


def fix(memory: memoryview) -> None:
    """Seal the segment of *memory* against opening for writing; the caller does not write to it either.

    No-op for memory that lies in no segment of this process.
    """
    held = _holder(address_of(memory))
    if held is not None and not held.fixed:
        with contextlib.suppress(OSError):  # a kernel before 5.1: those who open it map it private all the same
            _seal(held.fd, _SEAL_FUTURE_WRITE)
        held.fixed = True


def open_span(span: Span, access: Access) -> memoryview:
    """Map a part of another process's segment; see `open_spans`."""
    return open_spans([span], access)[0]


def open_spans(spans: Sequence[Span], access: Access) -> list[memoryview]:
    """Map parts of other processes' segments; a segment stays mapped as long as a view of it exists.

    Raises:
        OSError: the process has ended, has closed one, or may not be looked into; the text says which.
    """
    return _open_all(spans, access, keep=False)


def hold_spans(spans: Sequence[Span]) -> list[memoryview]:
    """As `open_spans`, for reading what is fixed; keep it open, so that this process can give it to others."""
    return _open_all(spans, Access.READ, keep=True)


def _open_all(spans: Sequence[Span], access: Access, *, keep: bool) -> list[memoryview]:
    wholes: dict[tuple[int, int, bytes], memoryview] = {}
    views = []
    for span in spans:
        file = span.pid, span.fd, span.tag
        whole = wholes.get(file)
        if whole is None:
            whole = wholes[file] = _open(span, access, keep=keep)
        if span.offset + span.num_bytes > whole.nbytes:
            raise OSError(errno.EINVAL, f"a part of it ends behind its {whole.nbytes} bytes")
        views.append(whole[span.offset : span.offset + span.num_bytes])
    return views


def _open(span: Span, access: Access, *, keep: bool) -> memoryview:
    where = f"/proc/{span.pid}/fd/{span.fd}"
    file = f"/memfd:{_name(span.tag)} (deleted)"
    if os.readlink(where) != file:  # before it is opened, which may do something to another file
        raise OSError(errno.ESTALE, "another file has taken the place of this memory", where)
    fd = os.open(where, (os.O_RDWR if access is Access.WRITE else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if os.readlink(f"/proc/self/fd/{fd}") != file or status.st_uid != os.geteuid():
            raise OSError(errno.ESTALE, "another file has taken the place of this memory", where)
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _KEEPS_SIZE != _KEEPS_SIZE:
            raise OSError(errno.EINVAL, f"its size, {status.st_size} bytes, may change", where)
    except BaseException:
        os.close(fd)
        raise
    return _map(fd, span.tag, status.st_size, access, keep=keep, fixed=keep)


def _map(fd: int, tag: bytes, num_bytes: int, access: Access, *, keep: bool, fixed: bool) -> memoryview:
    """Map all of *fd*, and close it: now, or with the mapping if *keep*."""
    flags = mmap.MAP_PRIVATE | _NORESERVE if access is Access.PRIVATE else mmap.MAP_SHARED
    protection = mmap.PROT_READ if access is Access.READ else mmap.PROT_READ | mmap.PROT_WRITE
    first = _mmap(None, num_bytes, protection, flags, fd, 0)
    if first == _FAILED:
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, f"cannot map {num_bytes} bytes: {os.strerror(number)}")
    held = _Held(first, first + num_bytes, fd, tag, fixed) if keep else None
    if held is None:
        os.close(fd)
    else:
        with _lock:
            bisect.insort(_held, held, key=lambda one: one.first)
        _unmap_gone()
    memory = (ctypes.c_char * num_bytes).from_address(first)
    # Not at the end of the process: other threads may still use it, and the kernel frees all.
    weakref.finalize(memory, _release, first, num_bytes, held).atexit = False
    view = memoryview(memory).cast("B")
    return view.toreadonly() if access is Access.READ else view


def _release(first: int, num_bytes: int, held: _Held | None) -> None:
    _gone.append((first, num_bytes, held))
    _unmap_gone()


def _unmap_gone() -> None:
    """Unmap what is unused; left to the holder of the lock, which may be interrupted by the garbage collector."""
    while _gone and _lock.acquire(blocking=False):
        try:
            first, num_bytes, held = _gone.popleft()
            if held is not None:
                _held.remove(held)
        except IndexError:  # another thread was faster
            continue
        finally:
            _lock.release()
        if held is not None:
            os.close(held.fd)
        _munmap(first, num_bytes)


def _new_file(tag: bytes, num_bytes: int) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(_name(tag), flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 6.3
            raise
        fd = os.memfd_create(_name(tag), flags)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, num_bytes)
        _seal(fd, _KEEPS_SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _seal(fd: int, seals: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def _write(fd: int, data: memoryview, at: int) -> None:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(fd, data[done : done + _WRITE_BYTES], at + done)


def _name(tag: bytes) -> str:
    return f"monarch-hpc-{tag.hex()}"


@functools.cache
def place_digest() -> bytes:
    """A digest of `core.machine.place.read_place` in 8 bytes; zeros where that is unknown."""
    import hashlib  # late: with OpenSSL it takes longer than all else that a first small call needs of this module

    place = read_place()
    return hashlib.sha256(place.encode()).digest()[:8] if place else bytes(8)
