"""Parties in a process of their own; a frame's `reply` says what is wanted of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame, Kind
from tests.system import parties

__all__ = ["ECHO", "HOLD", "LEAVE", "MEMORY", "Far", "far"]

ECHO, LEAVE, HOLD, MEMORY = 1, 2, 3, 4
"""Send it back; close the channel; take nothing more until there is another line on stdin; send the key of `dest` bytes
of memory that is full of sevens."""


class Far:
    """The process, seen from the test."""

    def __init__(self, process: subprocess.Popen[str], addresses: list[str]) -> None:
        self.process = process
        self.addresses = addresses

    @property
    def rss_bytes(self) -> int:
        """Memory that it has."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def num_fds(self) -> int:
        """Descriptors that it has."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def go_on(self) -> None:
        """End a HOLD."""
        assert self.process.stdin is not None
        print("go on", file=self.process.stdin, flush=True)


@contextlib.contextmanager
def far(fabric: str, count: int = 1) -> Iterator[Far]:
    """*count* parties in one other process, which is killed in the end; no file of UCX's outlives that."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as segments:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.far", parties.KEY.hex(), parties.ALLOCATION, fabric, str(count)],
            env={**os.environ, "UCX_POSIX_DIR": segments},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Far(process, process.stdout.readline().split())
        finally:
            ended = process.poll()
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        # Not for a test to kill with: only a library that gives up ends so.
        assert ended not in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS), f"the other process: {ended}"


class _Served:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.nodes: list[Node] = []

    def on_channel(self, channel: FrameChannel) -> None:
        """Nothing to prepare."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        with contextlib.suppress(TransportError):
            if frame.reply == ECHO:
                channel.send(
                    Frame(frame.kind, frame.dest, 0, bytes(frame.body), [bytes(part) for part in frame.buffers])
                )
            elif frame.reply == LEAVE:
                channel.close("it was told to")
            elif frame.reply == HOLD:
                sys.stdin.readline()
            elif frame.reply == MEMORY:
                # Not here: UCX may have to start first.
                threading.Thread(target=self._lend, args=(channel, frame.dest), daemon=True).start()

    def _lend(self, channel: FrameChannel, num_bytes: int) -> None:
        memory = self.nodes[0].register(bytearray(b"\7" * num_bytes))
        channel.send(Frame(Kind.RESULT, 0, 0, memory.key))

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """They come and go."""


def _main(key: str, allocation: str, fabric: str, count: str) -> None:
    engine = Engine()
    engine.start()
    # Nobody here is a stranger, and a busy machine may leave either side half a second without a turn.
    limits = dataclasses.replace(parties.LIMITS, max_half_open=512, handshake_s=10.0)
    ucx = parties.make_fabric(engine, parties.UCX[fabric]) if fabric in parties.UCX else None
    served = _Served(engine)
    nodes = served.nodes
    for _ in range(int(count)):
        identity = Identity(allocation, Role.PROC, "there", new_incarnation())
        nodes.append(Node(engine, identity, bytes.fromhex(key), served, limits, fabric=ucx))
    print(*[address for node in nodes for address in node.listen(["127.0.0.1"])], flush=True)
    Flag(engine).wait(1800.0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
