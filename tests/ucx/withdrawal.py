"""Memory is taken back while messages arrive: `python -m tests.ucx.withdrawal LIBUCP withdraw`, as `tests.ucx.pair`."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from tests.ucx.pair import PATIENCE_S, End, joined

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from monarch_hpc.transport.ucx import _ucx

_GUARD = 64
_SIZES = (100, 100_000, 4 << 20)
_LARGE = 32 << 20
"""Arrives within dozens of turns of the worker, so that a thread finds it in the middle."""


class Receiver:
    """The owner of *end*'s lane: messages arrive in targets of its own memory.

    Attributes:
        memory: guarded memory for the next message.
        num_whole: messages that were there when they were seen.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self.num_whole = 0
        self.prepare(0)

    def prepare(self, num_bytes: int) -> None:
        """Make memory for the next message."""
        self.memory = bytearray(b"\xa5") * (num_bytes + 2 * _GUARD)
        self.view = memoryview(self.memory)[_GUARD : _GUARD + num_bytes]
        self.target: _ucx.Target | None = self._end.ucx.Target(num_bytes)

    def on_whole(self, _sequence: int, _container: int, _placed: Buffer) -> None:
        self.num_whole += 1

    def land(self, _sequence: int, num_bytes: int) -> tuple[memoryview, _ucx.Target] | None:
        if self.target is None:
            return None
        assert num_bytes == len(self.view)
        self.target.set(self.view)
        return self.view, self.target

    @property
    def guarded(self) -> bool:
        """Whether nothing was written beside the memory."""
        return self.memory[:_GUARD] == self.memory[-_GUARD:] == b"\xa5" * _GUARD


def withdraw(libucp: str) -> None:
    """Receive messages whole, then with their memory taken back before, and in the middle; print how often that was."""
    with joined(libucp) as (end, _key, _address):
        receiver = Receiver(end)
        end.on_whole, end.land = receiver.on_whole, receiver.land
        end.lane.lands = True
        for size in _SIZES:
            sent = os.urandom(size)
            for before in (False, True):
                receiver.prepare(size)
                if before and receiver.target is not None:
                    receiver.target.withdraw()
                _echo(end, sent)
                assert receiver.guarded and (receiver.view == (b"\xa5" * size if before else sent))
        receiver.target = None
        _echo(end, bytes(100_000))  # none: it arrives in memory of the worker's
        print(receiver.num_whole, sum(_in_the_middle(end, receiver) for _ in range(8)))


def _echo(end: End, data: bytes) -> None:
    num = end.num_bulk
    end.send_bulk(data)
    end.until(lambda: end.num_bulk > num)


def _in_the_middle(end: End, receiver: Receiver) -> bool:
    """Take memory back once its first bytes are there; whether its last ones were not."""
    receiver.prepare(_LARGE)
    view, target = receiver.view, receiver.target
    assert target is not None
    then: list[bytes] = []

    def take_back() -> None:
        end_s = time.monotonic() + PATIENCE_S
        while view[0] == 0xA5 and time.monotonic() < end_s:
            time.sleep(0)
        target.withdraw()
        then.append(bytes(view))

    thread = threading.Thread(target=take_back)
    thread.start()
    _echo(end, bytes(_LARGE))
    thread.join()
    assert receiver.guarded and view == then[0], "written to after it was taken back"
    return view[-1] == 0xA5


if __name__ == "__main__":
    {"withdraw": withdraw}[sys.argv[2]](sys.argv[1])
