"""The records of a relay: on its pipes, little-endian, after the far end's `GREETING`.

u8 what, u32 stream, u32 size, then size bytes

OPEN  an address      near to far
DATA  bytes           either way, at most `WINDOW_BYTES` unacknowledged
TAKEN u32             acknowledges that many bytes, and grants as many more
END   why, UTF-8      the stream has ended; earlier data is still to be delivered
KEEP                  near to far, periodically: keepalive of the near end
REACH                 near to far: how the far end can connect to the near one, as `attach.dial_back` has it
CHANGE                the last record on this pipe: the next ones come over that connection; the near end answers it
"""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import Callable

__all__ = ["END_OF_PIPE", "HEAD", "WINDOW_BYTES", "RelayStream", "What"]

WINDOW_BYTES = 2**20
"""Bytes of one stream in flight: enough for 17 MB/s, srun's throughput, at a round trip of 60 ms."""

HEAD = struct.Struct("<BII")
"""Kind, stream and size of a record."""


class What(enum.IntEnum):
    OPEN = 1
    DATA = 2
    TAKEN = 3
    END = 4
    KEEP = 5
    REACH = 6
    CHANGE = 7


END_OF_PIPE = memoryview(b"")
"""In the queue for the pipe, behind the last record on it."""


class RelayStream:
    """One stream at one end: a local socket, and the data queued for it."""

    __slots__ = ("credit", "ended", "failed", "number", "opened", "sock", "unsent", "watched")

    def __init__(self, number: int, sock: socket.socket, failed: Callable[[str], None] | None) -> None:
        self.number = number
        self.sock = sock
        self.failed = failed  # called with the reason when the far end ends the stream
        self.opened = True  # False while the far end's socket connects
        self.credit = WINDOW_BYTES  # bytes that may still be sent to the other end
        self.unsent = bytearray()
        self.ended = False  # the other end sends no more
        self.watched = (False, False)
