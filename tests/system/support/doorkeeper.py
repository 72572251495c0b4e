"""A listening process, to be attacked and measured from outside.

Run as a program, it listens, and answers each line of its input with a line: the number of channels opened, frames
received, connections refused, and connections that have not authenticated yet.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame
from tests.child import child
from tests.guards.tree import ROOT
from tests.system.support.parties import ALLOCATION, KEY

__all__ = ["Doorkeeper", "Tally", "open_doorkeeper"]


class Tally(NamedTuple):
    """The counts of a doorkeeper so far."""

    opened: int
    frames: int
    refused: int
    half_open: int


class Doorkeeper:
    """The process, seen from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.address = process.stdout.readline().strip()

    def tally(self) -> Tally:
        """Ask for its counts."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return Tally(*json.loads(self._process.stdout.readline()))

    def until_alone(self) -> Tally:
        """Wait until it has no half-open connections."""
        return wait_until("an empty door", self.tally, accept=lambda tally: not tally.half_open)

    @property
    def memory_bytes(self) -> int:
        """Its private memory, as the kernel counts it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
        return 1024 * int(kib)

    def settled_bytes(self) -> int:
        """Its memory once closed connections have been freed: a closing channel takes up to 2 s."""
        held: list[int] = []

        def hold() -> int:
            self.tally()
            held.append(self.memory_bytes)
            return len(held)

        wait_until("memory that stays", hold, accept=lambda times: times > 30, interval_s=0.1)
        return held[-1]


@contextmanager
def open_doorkeeper(limits: TransportConfig) -> Iterator[Doorkeeper]:
    """Start a doorkeeper, and stop it."""
    told = json.dumps([ALLOCATION, KEY.hex(), vars(limits)])
    argv = [sys.executable, "-m", "tests.system.support.doorkeeper", told]
    with child(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)) as process:
        try:
            yield Doorkeeper(process)
            assert process.poll() is None, "the doorkeeper did not survive"
        finally:
            process.terminate()


class _Counting:
    """Counts events, and keeps nothing."""

    def __init__(self) -> None:
        self.opened = self.frames = 0

    def on_channel(self, _channel: FrameChannel) -> None:
        self.opened += 1

    def on_frame(self, _channel: FrameChannel, _frame: Frame) -> None:
        self.frames += 1

    def on_lost(self, _channel: FrameChannel, _error: TransportError) -> None:
        pass


def main() -> None:
    allocation, key, limits = json.loads(sys.argv[1])
    engine = Engine()
    engine.start()
    counting = _Counting()
    identity = Identity(allocation, Role.PROC, "here", new_incarnation())
    node = Node(engine, identity, bytes.fromhex(key), counting, TransportConfig(**limits))
    print(*node.listen(["127.0.0.1"]), flush=True)
    for _ in sys.stdin:
        gc.collect()  # what is left is referenced, not just uncollected
        print(json.dumps([counting.opened, counting.frames, node.num_refused, node.num_half_open]), flush=True)


if __name__ == "__main__":
    main()
