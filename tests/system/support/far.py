"""Parties in a separate process, which carry out `monarch_hpc.testing.conformance.Commands`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.testing.conformance import Commands
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.node import Node
from tests.system.support import parties

__all__ = ["Far", "far"]


class Far:
    """The separate process, seen from the test."""

    def __init__(self, process: subprocess.Popen[str], addresses: list[str]) -> None:
        self.process = process
        self.addresses = addresses

    @property
    def rss_bytes(self) -> int:
        """Its resident memory."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def num_fds(self) -> int:
        """Number of its descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def go_on(self) -> None:
        """End a HOLD."""
        assert self.process.stdin is not None
        print("go on", file=self.process.stdin, flush=True)


@contextlib.contextmanager
def far(fabric: str, count: int = 1) -> Iterator[Far]:
    """Run *count* parties in one process, which is killed in the end and leaves no file of UCX."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as segments:
        # Without shared memory there are no files, and the trial of RDMA, which leaves one, is not repeated.
        folder = {} if fabric == "ucx-rdma" else {"UCX_POSIX_DIR": segments}
        argv = ["-m", "tests.system.support.far", parties.KEY.hex(), parties.ALLOCATION, fabric, str(count)]
        process = subprocess.Popen(
            [sys.executable, *argv],
            env={**os.environ, **folder},
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
        # Tests do not kill with these signals: they mean that a library has aborted.
        assert ended not in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS), f"the other process: {ended}"


def _main(key: str, allocation: str, fabric: str, count: str) -> None:
    engine = Engine()
    engine.start()
    # All clients are trusted, and on a busy machine either side may not be scheduled for half a second.
    limits = dataclasses.replace(parties.LIMITS, max_half_open=512, handshake_s=10.0)
    ucx = parties.make_fabric(engine, parties.UCX[fabric]) if fabric in parties.UCX else None
    served = Commands()
    nodes = served.nodes
    for _ in range(int(count)):
        identity = Identity(allocation, Role.PROC, "there", new_incarnation())
        nodes.append(Node(engine, identity, bytes.fromhex(key), served, limits, fabric=ucx))
        nodes[-1].own_memory.cross_memory.use((fabric, "tcp"))
    print(*[address for node in nodes for address in node.listen(["127.0.0.1"])], flush=True)
    Flag(engine).wait(1800.0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
