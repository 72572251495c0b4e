"""Messages about pulls: between who wants a copy, those who pull it, and those whom they pull it from.

Each is a PULL frame: dest = its `PullStep`, reply = the number of the receiver in its copy, body = the copy's
identifier and the rest. Pure.
"""

from __future__ import annotations

import enum
import struct

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.memory.requests import parse_step
from monarch_hpc.wire.frames import Frame, Kind

__all__ = [
    "SOURCE",
    "Beginning",
    "PullStep",
    "PullTarget",
    "make_pull",
    "number_of",
    "pack_number",
    "pack_trouble",
    "parse_pull",
    "trouble_of",
]

SOURCE = -1
"""Number of the source, which has all bytes from the beginning."""

_OPENING = struct.Struct(f"<{ID_BYTES}sQQQ{ID_BYTES}sQd")
_BEGINNING = struct.Struct(f"<qQ{ID_BYTES}sQ?")
_NUMBER = struct.Struct("<Q")
_TROUBLE = struct.Struct("<q?")

_MOST_REPORT_S = 3600.0


class PullStep(enum.IntEnum):
    """The meaning of a message; W: who wants the copy, R: a receiver, P: a receiver that others pull from."""

    OPEN = 1  # W to R: prepare; the rest is an `PullTarget`
    READY = 2  # answers OPEN
    REFUSED = 3  # answers OPEN; the rest is the reason, UTF-8
    BEGIN = 4  # W to R: pull from here on, also instead of another place; the rest is a `Beginning`
    FOLLOW = 5  # R to P: tell me how much you have; reply is the number of P
    PROGRESS = 6  # answers FOLLOW, and again whenever there is more: the number of bytes; reply is the number of P
    GONE = 7  # answers FOLLOW: P has no such copy
    REPORT = 8  # R to W, at times and at the end: the number of bytes it has
    STUCK = 9  # R to W: it cannot pull from there; the rest is from `pack_trouble`
    FAILED = 10  # R to W: it will not pull any more; the rest is the reason, UTF-8
    END = 11  # W to R: stop, and forget it
    ENDED = 12  # answers END, once nothing is written any more


_STEPS = {int(step): step for step in PullStep}


def make_pull(step: PullStep, number: int, copy: bytes, rest: bytes = b"") -> Frame:
    """Render a message about *copy*."""
    return Frame(Kind.PULL, step, number, copy + rest)


def parse_pull(frame: Frame) -> tuple[PullStep, bytes, bytes]:
    """Return the step, the identifier of the copy, and the rest.

    Raises:
        FrameError: *frame* is not a message about pulls.
    """
    return parse_step(frame, _STEPS, "a message about a pull")


def pack_number(num_bytes: int) -> bytes:
    """Render the rest of PROGRESS and REPORT."""
    return _NUMBER.pack(num_bytes)


def number_of(rest: bytes) -> int:
    """Read what `pack_number` rendered.

    Raises:
        FrameError: *rest* has another size.
    """
    if len(rest) != _NUMBER.size:
        raise FrameError(f"the progress of a pull in {len(rest)} bytes, not {_NUMBER.size}")
    number: int = _NUMBER.unpack(rest)[0]
    return number


def pack_trouble(parent: int, why: str, *, refused: bool) -> bytes:
    """Render the rest of STUCK; *refused*: the owner has answered, and lends the memory to no one."""
    return _TROUBLE.pack(parent, refused) + why.encode()


def trouble_of(rest: bytes) -> tuple[int, bool, str]:
    """Read what `pack_trouble` rendered.

    Raises:
        FrameError: *rest* is too short.
    """
    if len(rest) < _TROUBLE.size:
        raise FrameError(f"the trouble of a pull in {len(rest)} bytes, fewer than {_TROUBLE.size}")
    parent, refused = _TROUBLE.unpack_from(rest)
    return parent, refused, rest[_TROUBLE.size :].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class PullTarget:
    """What a receiver is to write: *num_bytes* from *offset* of its own memory on, in chunks.

    Attributes:
        source: the memory that is copied, and where in it the copy begins: it may be the receiver's own, too.
        report_s: time between two reports.
    """

    memory: bytes
    offset: int
    num_bytes: int
    chunk_bytes: int
    source: bytes
    source_offset: int
    report_s: float

    def pack(self) -> bytes:
        """Render it."""
        sizes = self.offset, self.num_bytes, self.chunk_bytes
        return _OPENING.pack(self.memory, *sizes, self.source, self.source_offset, self.report_s)

    @classmethod
    def parse(cls, rest: bytes) -> PullTarget:
        """Read what `pack` rendered.

        Raises:
            FrameError: *rest* has another size, or there are no bytes.
        """
        if len(rest) != _OPENING.size:
            raise FrameError(f"the opening of a pull in {len(rest)} bytes, not {_OPENING.size}")
        opening = cls(*_OPENING.unpack(rest))
        if not (opening.num_bytes and opening.chunk_bytes and 0.0 < opening.report_s < _MOST_REPORT_S):
            raise FrameError(f"a pull of {opening.num_bytes} bytes in chunks of {opening.chunk_bytes}")
        return opening


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a receiver is to pull from.

    Attributes:
        parent: the number of that receiver; `SOURCE` for the source.
        memory, offset: where the copy begins there.
        whole: whether all bytes are there already.
        addresses: its addresses, see `transport.node.Node.dial`.
    """

    parent: int
    incarnation: int
    memory: bytes
    offset: int
    whole: bool
    allocation: str
    addresses: tuple[str, ...]

    def pack(self) -> bytes:
        """Render it."""
        head = _BEGINNING.pack(self.parent, self.incarnation, self.memory, self.offset, self.whole)
        return head + "\n".join((self.allocation, *self.addresses)).encode()

    @classmethod
    def parse(cls, rest: bytes) -> Beginning:
        """Read what `pack` rendered.

        Raises:
            FrameError: *rest* is too short.
        """
        if len(rest) < _BEGINNING.size:
            raise FrameError(f"the beginning of a pull in {len(rest)} bytes, fewer than {_BEGINNING.size}")
        allocation, *addresses = rest[_BEGINNING.size :].decode(errors="replace").split("\n")
        parent, incarnation, memory, offset, whole = _BEGINNING.unpack_from(rest)
        return cls(parent, incarnation, memory, offset, whole, allocation, tuple(addresses))
