"""Requests about registered memory that are no transfers: to open it, to revoke it, and to change a number in it.

Each is a MEMORY frame: dest = its `MemoryStep`, reply = the request's number, body = the memory's identifier and the
rest. Pure.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.memory.cma.stamps import STAMP_BYTES, Stamp
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.wire.frames import Frame, Kind

__all__ = [
    "WORD_BYTES",
    "Change",
    "MemoryStep",
    "OpenedMemory",
    "make_request",
    "of_owner",
    "pack_owner",
    "parse_owner",
    "parse_request",
]

WORD_BYTES = 8
"""Size of the numbers that `MemoryStep.CHANGE` changes."""

_OPENED = struct.Struct(f"<IQ{STAMP_BYTES}sQ")  # pid, address of the stamp, stamp, address; then the key
_CHANGE = struct.Struct("<QB8s8s")
_OWNER = struct.Struct("<Q")


class MemoryStep(enum.IntEnum):
    """The meaning of a request or of its answer."""

    OPEN = 1  # give me the key; the rest is the place of the process, see `core.machine.place`, empty if unknown
    OPENED = 2  # answers OPEN; the rest is an `OpenedMemory`
    REFUSED = 3  # answers OPEN, DROP and CHANGE; the rest is the reason, UTF-8
    DROP = 4  # revoke it for all; the rest is who wants that, UTF-8
    DROPPED = 5  # answers DROP, once no process uses it any more
    REVOKE = 6  # owner to those who have opened it: stop using it; the rest is the reason, UTF-8
    RELEASED = 7  # answers REVOKE, once no transfer is in progress
    CHANGE = 8  # change a number in it, atomically; the rest is a `Change`
    CHANGED = 9  # answers CHANGE; the rest is the number before the change, `WORD_BYTES`
    ASK_PATH = 10  # what carries its bytes between you and its owner? The rest is the owner's incarnation, u64
    PATH = 11  # answers ASK_PATH; the rest is the path, UTF-8, empty if you have not used it


_Step = TypeVar("_Step")

_STEPS = {int(step): step for step in MemoryStep}
_OF_OWNER = frozenset(
    (
        MemoryStep.OPENED,
        MemoryStep.REFUSED,
        MemoryStep.DROPPED,
        MemoryStep.REVOKE,
        MemoryStep.CHANGED,
        MemoryStep.PATH,
    )
)


def make_request(step: MemoryStep, number: int, identifier: bytes, rest: bytes = b"") -> Frame:
    """Render a request or an answer."""
    return Frame(Kind.MEMORY, step, number, identifier + rest)


def of_owner(frame: Frame) -> bool:
    """Whether *frame* is a request or an answer of the memory's owner."""
    return frame.kind is Kind.MEMORY and frame.dest in _OF_OWNER


def parse_request(frame: Frame) -> tuple[MemoryStep, bytes, bytes]:
    """Return the step, the memory's identifier, and the rest.

    Raises:
        FrameError: *frame* is not a request about memory.
    """
    return parse_step(frame, _STEPS, "a memory request")


def parse_step(frame: Frame, steps: Mapping[int, _Step], what: str) -> tuple[_Step, bytes, bytes]:
    """Return the step of a frame, which *steps* has by number, the identifier that its body begins with, and the rest.

    Raises:
        FrameError: it has no such step, no identifier, or buffers; *what* names it.
    """
    step = steps.get(frame.dest)
    if step is None or len(frame.body) < ID_BYTES or frame.buffers:
        raise FrameError(f"{what} of {len(frame.body)} bytes with step {frame.dest}")
    body = bytes(frame.body)
    return step, body[:ID_BYTES], body[ID_BYTES:]


def pack_owner(incarnation: int) -> bytes:
    """Render the rest of `MemoryStep.ASK_PATH`."""
    return _OWNER.pack(incarnation)


def parse_owner(rest: bytes) -> int:
    """Read what `pack_owner` rendered.

    Raises:
        FrameError: *rest* has another size.
    """
    if len(rest) != _OWNER.size:
        raise FrameError(f"the incarnation of a memory's owner has {len(rest)} bytes, not {_OWNER.size}")
    incarnation: int = _OWNER.unpack(rest)[0]
    return incarnation


@dataclass(frozen=True, slots=True)
class OpenedMemory:
    """The answer to `MemoryStep.OPEN`.

    Attributes:
        pid: the owner, for a process in the same place; 0 if it does not let others copy its memory by themselves.
        stamp: that of the channel.
        address: where the memory lies in the owner's process.
        key: the memory's key.
    """

    key: bytes
    pid: int = 0
    stamp: Stamp = Stamp(0, bytes(STAMP_BYTES))
    address: int = 0

    def pack(self) -> bytes:
        """Render it for an answer."""
        return _OPENED.pack(self.pid, self.stamp.address, self.stamp.value, self.address) + self.key

    @classmethod
    def parse(cls, rest: bytes) -> OpenedMemory:
        """Read what `pack` rendered.

        Raises:
            FrameError: *rest* is too short.
        """
        if len(rest) < _OPENED.size:
            raise FrameError(f"the answer of a memory's owner has {len(rest)} bytes, fewer than {_OPENED.size}")
        pid, stamp_address, stamp, address = _OPENED.unpack_from(rest)
        return cls(rest[_OPENED.size :], pid, Stamp(stamp_address, stamp), address)


class Change:
    """An atomic change of a number of `WORD_BYTES` in memory, in the byte order of the machine.

    Args:
        offset: where the number lies; a multiple of `WORD_BYTES`.
        compare: the number that must be there for *value* to replace it; None to add *value*, modulo 2**64.
    """

    def __init__(self, offset: int, value: bytes, compare: bytes | None = None) -> None:
        self.offset = offset
        self.value = value
        self.compare = compare

    def pack(self) -> bytes:
        """Render it for a request."""
        return _CHANGE.pack(self.offset, self.compare is not None, self.value, self.compare or bytes(WORD_BYTES))

    @classmethod
    def parse(cls, rest: bytes) -> Change:
        """Read what `pack` rendered.

        Raises:
            FrameError: *rest* has another size.
        """
        if len(rest) != _CHANGE.size:
            raise FrameError(f"a change of memory of {len(rest)} bytes, not {_CHANGE.size}")
        offset, compares, value, compare = _CHANGE.unpack(rest)
        return cls(offset, value, compare if compares else None)

    def apply(self, word: memoryview) -> bytes:
        """Change *word*, which has `WORD_BYTES`; return what it was."""
        before = bytes(word)
        if self.compare is None:
            added = int.from_bytes(before, "little") + int.from_bytes(self.value, "little")
            word[:] = (added % 2 ** (8 * WORD_BYTES)).to_bytes(WORD_BYTES, "little")
        elif before == self.compare:
            word[:] = self.value
        return before
