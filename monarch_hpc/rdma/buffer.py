"""RDMA buffers: references to memory that any process of the run may read and write without code of its owner."""

from __future__ import annotations

import math
import time
from typing import Any

from monarch_hpc.actor.context import context
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.arguments import check_flag, check_instance, check_time_limit, shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.storage.segment import Access
from monarch_hpc.mesh.actors import ActorMesh, procs_of
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.rdma.backend import get_rdma_backend
from monarch_hpc.rdma.devices import settle
from monarch_hpc.rdma.lending import lend
from monarch_hpc.rdma.local import Local, allocation_of, check_types, look_at
from monarch_hpc.rdma.remote_use import AskUse, MoveUse, after
from monarch_hpc.rdma.shared import lay_over, map_memory
from monarch_hpc.transport.memory.moves import Move
from monarch_hpc.transport.memory.peer import Answered, MemoryPeer
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.transport.memory.requests import WORD_BYTES, Change
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["DEFAULT_TIMEOUT_S", "RDMABuffer", "lend_scattered", "rebuild"]

DEFAULT_TIMEOUT_S = 60.0
"""Monarch's default: long enough for hundreds of gigabytes on any network that has RDMA."""


class RDMABuffer:
    """A reference to memory of the process that made it; may be sent in messages.

    The bytes are read and written where they lie, while the owner computes: by UCX where both sides have it, else by
    frames, for which the owner's interpreter must get its turn. The buffer holds the memory until `drop`, or the end of
    the actor that made it.

    Args:
        data: a NumPy array, a torch tensor on a CPU or GPU, or any object with a buffer; contiguous, of any shape.
        writable: whether others may write to it.

    Raises:
        TypeError: *data* has no memory that can be moved as it is.
        ValueError: it has no bytes, is not contiguous, or cannot be written to although *writable*.

    Attributes:
        owner: identity of the actor that made it.
        shape: sizes of the dimensions, in elements.
        dtype: name of the elements' type: ``float32``.
        device: where the memory lies: ``cpu``, or a device as torch names it.
        writable: whether others may write to it.
    """

    _access = Access.READ
    """How `map` maps it."""

    def __init__(self, data: object, *, writable: bool = True) -> None:
        local = look_at("data", data, writable=check_flag("writable", writable))
        self._lend(local, allocation_of(data), writable=writable)

    def _lend(self, local: Local, allocation: tuple[int, int] | None, *, writable: bool) -> None:
        runtime, maker = current_runtime(), context()
        settle(local.buffer)
        memory = runtime.node.register(local.buffer, writable=writable, allocation=allocation)
        self.owner = str(maker.actor_id)
        self.shape, self.dtype, self.device, self.writable = local.shape, local.dtype, local.device, writable
        self._proc = runtime.own
        self._id = memory.parts.id
        self._kind = local.kind
        self._offset = 0
        self._item_bytes = local.num_bytes // math.prod(local.shape)
        lend(runtime, maker, memory)

    def __repr__(self) -> str:
        return f"<RDMABuffer {self.dtype}{list(self.shape)} on {self.device} of {self.owner}>"

    def __reduce__(self) -> tuple[Any, ...]:
        proc = self._proc
        where = (proc.mesh, proc.rank, proc.host, proc.host_rank, proc.pid, proc.incarnation, proc.addresses)
        more = (proc.restarts, proc.allocation, self._id, self._offset, self._item_bytes)
        shown_as = (self.shape, self.dtype, self.device, self._kind, self.owner, self.writable)
        return rebuild, (where, more, shown_as)

    def __getitem__(self, index: slice) -> RDMABuffer:
        """A reference to elements *a* up to *b* of the first dimension; `drop` of either drops the whole memory.

        Raises:
            TypeError: *index* is no slice.
            ValueError: it has a step, or no element.
        """
        if not isinstance(index, slice):
            raise TypeError(f"give a slice, as in buffer[a:b], not {shown(index)}")
        if not self.shape:
            raise ValueError("the buffer has no dimension that could be sliced")
        first, last, step = index.indices(self.shape[0])
        if step != 1 or last <= first:
            raise ValueError(f"a slice of {self.shape[0]} elements must have some, one after the other, not {index}")
        part: RDMABuffer = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        part.shape = (last - first, *self.shape[1:])
        part._offset = self._offset + first * (self.size() // self.shape[0])
        return part

    @property
    def identifier(self) -> bytes:
        """The memory's identifier at its owner."""
        return self._id

    @property
    def place(self) -> tuple[ProcRef, bytes, int]:
        """The owner's process, the memory's identifier there, and where in it the buffer begins, in bytes."""
        return self._proc, self._id, self._offset

    def size(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape) * self._item_bytes

    @property
    def backend(self) -> str:
        """What moves its bytes where both sides have it, see `get_rdma_backend`."""
        return get_rdma_backend()

    def path(
        self, peer: ProcMesh | ActorMesh[Any] | None = None, *, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> Future[str]:
        """Ask what moves its bytes between its owner and a process; chosen for each pair of them, and each memory.

        Args:
            peer: a mesh of one proc, or of one actor, whose proc is meant; None for this process.
            timeout: seconds; None for no limit.

        Returns:
            A future with ``shm`` where that process maps the memory, ``cma`` where it copies it by itself, ``local`` in
            the owner, else with the fabric: ``ucx/shm``, ``tcp``. Empty while the two have no connection. It fails with
            `ProcDied` or `HostLost` if *peer* is gone.

        Raises:
            TypeError, ValueError: *peer* is not a mesh of one proc or actor.
        """
        runtime, limit_s = current_runtime(), check_time_limit("timeout", timeout)
        proc = runtime.own if peer is None else _proc_of(peer)
        found: list[str] = []

        def ask(memory: MemoryPeer, answered: Answered) -> None:
            memory.ask_path(self._id, self._proc.incarnation, answered)

        what = f"the path of {self!r} on {proc.host}"
        use = AskUse(runtime, proc, what, limit_s, ask, lambda text: found.append(text.decode(errors="replace")))
        use.begin()
        return after(use, what, found.pop)

    def read_into(self, dst: object, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[None]:
        """Read the buffer into the beginning of *dst*.

        Args:
            dst: contiguous and at least as large, on any device; not to be touched before the future is done.
            timeout: seconds; None for no limit.

        Returns:
            A future that is done when all bytes have arrived. It fails with `MemoryAccessError` if the buffer was
            dropped, with `ProcDied` or `HostLost` if its owner is gone, and with `TimeoutError`; then, too, nothing
            writes to *dst* any more.

        Raises:
            TypeError, ValueError: *dst* cannot take it.
        """
        return self._begin(self.reading(dst), timeout)

    def write_from(self, src: object, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[None]:
        """Write all of *src* to the beginning of the buffer.

        Args:
            src: contiguous and at most as large, on any device; not to be changed before the future is done.
            timeout: seconds; None for no limit.

        Returns:
            A future that is done when all bytes are in the buffer; it fails as that of `read_into` does.

        Raises:
            TypeError, ValueError: *src* does not fit, or the buffer can only be read.
        """
        return self._begin(self.writing(src), timeout)

    def read(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[Any]:
        """Read the buffer into a new array or tensor in host memory, or a bytearray: what its owner has.

        Returns:
            A future with it; it fails as that of `read_into` does.
        """
        into = _new(self._kind, self.shape, self.dtype, self.size())
        return after(self._begin(self.reading(into), timeout), repr(self), lambda: into)

    def map(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[Any]:
        """Map the buffer's memory, which was made by `rdma.empty` in a proc of this host, without copying it.

        Returns:
            A future with a read-only array, a tensor or a memoryview, which shows what the owner writes. torch has no
            read-only tensors: what is written into this one changes nothing but this one. It stays readable memory,
            whatever happens to the owner and to the buffer. The future fails with `MemoryAccessError` if the memory
            cannot be mapped, or was dropped; otherwise as that of `read_into`.
        """
        private = self._access is Access.READ and self._kind == "torch"
        access = Access.PRIVATE if private else self._access
        limit_s = check_time_limit("timeout", timeout)
        part = slice(self._offset, self._offset + self.size())
        mapped, views = map_memory(self._proc, self._id, part, access, repr(self), limit_s)
        return after(mapped, repr(self), lambda: lay_over(self._kind, views.pop(), self.shape, self.dtype))

    def drop(self) -> Future[None]:
        """Revoke the memory for everyone; anyone who has the buffer may do so.

        Returns:
            A future, done when no process uses the memory any more. Every later use, and every other `drop`, fails
            with `MemoryAccessError`, which says who has dropped it and when.
        """
        runtime = current_runtime()
        who = f"it was dropped by {context().actor_id} at {time.strftime('%H:%M:%S')}"

        def ask(memory: MemoryPeer, answered: Answered) -> None:
            memory.drop(self._id, who, answered)

        dropping = AskUse(runtime, self._proc, f"the end of {self!r}", None, ask)
        dropping.begin()
        return dropping

    # ---- for actions and copies ----

    def check_same(self, what: str, other: RDMABuffer) -> None:
        """Refuse a buffer whose elements are neither of the same type nor bytes; *what* names it.

        Raises:
            TypeError: naming both types.
        """
        check_types(what, other.dtype, self.dtype)

    def part(self, start: int, num_bytes: int) -> RDMABuffer:
        """A reference to *num_bytes* bytes from *start* on."""
        part: RDMABuffer = object.__new__(RDMABuffer)
        part.__dict__.update(self.__dict__)
        part.shape, part.dtype, part._item_bytes, part._kind = (num_bytes,), "uint8", 1, ""
        part._offset = self._offset + start
        return part

    def reading(self, dst: object) -> Moving:
        """Check a read; see `read_into`."""
        local = look_at("dst", dst, writable=True)
        local.check_type("dst", self.dtype)
        if local.num_bytes < self.size():
            raise ValueError(f"dst has {local.num_bytes} bytes, fewer than the {self.size()} of {self!r}")
        return Moving(self, local, self.size(), write=False)

    def writing(self, src: object) -> Moving:
        """Check a write; see `write_from`."""
        if not self.writable:
            raise ValueError(f"{self!r} can only be read: it was made with writable=False")
        local = look_at("src", src, writable=False)
        local.check_type("src", self.dtype)
        if local.num_bytes > self.size():
            raise ValueError(f"src has {local.num_bytes} bytes, more than the {self.size()} of {self!r}")
        return Moving(self, local, local.num_bytes, write=True)

    def changing(self, dst: object, value: bytes, compare: bytes | None) -> Changing:
        """Check a change of the number at the beginning; see `RDMAAction.fetch_add`."""
        if self.size() < WORD_BYTES or not self.writable or self.device != "cpu":
            raise ValueError(f"{self!r} is no writable memory of a host with at least {WORD_BYTES} bytes")
        local = look_at("dst", dst, writable=True)
        if local.num_bytes != WORD_BYTES or local.device != "cpu":
            raise ValueError(
                f"dst must have {WORD_BYTES} bytes of host memory, not {local.num_bytes} on {local.device}"
            )
        return Changing(self, local, Change(self._offset, value, compare))

    def _begin(self, moving: Moving, timeout: float | None) -> MoveUse:
        return moving.begin(current_runtime(), check_time_limit("timeout", timeout))


@dataclass(frozen=True, slots=True)
class Moving:
    """A transfer that has been checked, and can begin any number of times."""

    buffer: RDMABuffer
    local: Local
    num_bytes: int
    write: bool

    def begin(self, runtime: Runtime, limit_s: float | None) -> MoveUse:
        """Begin it."""
        buffer = self.buffer
        what = f"{'write' if self.write else 'read'} of {self.num_bytes} bytes of {buffer!r} on {buffer._proc.host}"
        identifier, offset, local, write = self.move
        settle(local)

        def move(memory: MemoryPeer) -> Transfer:
            return memory.move(identifier, offset, local, write=write)

        movement = MoveUse(runtime, buffer._proc, what, limit_s, move, identifier, self.num_bytes, write=write)
        movement.begin()
        return movement

    @property
    def proc(self) -> ProcRef:
        """The owner."""
        return self.buffer._proc

    @property
    def move(self) -> Move:
        """The transfer, for a list of several."""
        return Move(self.buffer._id, self.buffer._offset, self.local.part(self.num_bytes), self.write)


@dataclass(frozen=True, slots=True)
class Changing:
    """An atomic change that has been checked, and can begin any number of times."""

    buffer: RDMABuffer
    local: Local
    change: Change

    def begin(self, runtime: Runtime, limit_s: float | None) -> Future[None]:
        """Begin it."""
        buffer = self.buffer
        what = f"change of a number in {buffer!r} on {buffer._proc.host}"

        def ask(memory: MemoryPeer, answered: Answered) -> None:
            memory.change(buffer._id, self.change, answered)

        def take(before: bytes) -> None:
            self.local.buffer[:] = before

        use = AskUse(runtime, buffer._proc, what, limit_s, ask, take)
        use.begin()
        return use


def lend_scattered(memory: Scattered, *, writable: bool) -> RDMABuffer:
    """A buffer of memory that lies apart; for reading, or for both if *writable*."""
    num_bytes = memory.places.num_bytes
    buffer: RDMABuffer = object.__new__(RDMABuffer)
    buffer._lend(Local(memory, num_bytes, (num_bytes,), "uint8", "cpu", writable, ""), None, writable=writable)
    return buffer


def rebuild(
    where: tuple[Any, ...], more: tuple[Any, ...], shown_as: tuple[Any, ...], kind: type[RDMABuffer] = RDMABuffer
) -> RDMABuffer:
    """Make a buffer, of type *kind*, of what `RDMABuffer.__reduce__` has returned."""
    buffer: RDMABuffer = object.__new__(kind)
    *last, buffer._id, buffer._offset, buffer._item_bytes = more
    buffer._proc = ProcRef(*where, *last)
    buffer.shape, buffer.dtype, buffer.device, buffer._kind, buffer.owner, buffer.writable = shown_as
    return buffer


def _proc_of(peer: object) -> ProcRef:
    """The proc of a mesh of one; errors as of `RDMABuffer.path`."""
    check_instance("peer", peer, (ProcMesh, ActorMesh), "a mesh of one proc or actor, such as procs.slice(gpus=0)")
    assert isinstance(peer, ProcMesh | ActorMesh)
    procs = peer.procs if isinstance(peer, ProcMesh) else procs_of(peer)
    if len(procs) != 1:
        raise ValueError(f"peer is {peer!r}, of {len(procs)}: slice it to one proc")
    return procs[0]


def _new(kind: str, shape: tuple[int, ...], dtype: str, num_bytes: int) -> Any:
    """New memory in this process, of the kind that the owner of a buffer has."""
    if kind == "torch":
        from monarch_hpc.rdma.tensors import empty_tensor

        return empty_tensor(shape, dtype)
    if kind == "numpy":
        from monarch_hpc.rdma.arrays import empty_array

        return empty_array(shape, dtype)
    return bytearray(num_bytes)
