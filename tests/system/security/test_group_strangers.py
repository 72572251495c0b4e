"""Strangers at the port on which a rank listens for gloo: they pass for no rank, and take no descriptors for good.

gloo takes whoever sends the number of a rank's connection for that rank, and the numbers are 0, 1, 2.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_hpc.testing import wait_until

pytest.importorskip("torch")

from monarch_hpc.tensor.worker.collectives.sockets import admit_connections
from tests.child import child

NUM_NUMBERS = 4
NUM_ATTEMPTS = 12
"""Most attacks in a row: the rank that listens for the other depends on their ports, which the kernel chooses."""

PATIENCE_S = 30.0

# Two ranks in one process. The addresses decide which one listens for the other.
RANKS = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import torch
import torch.distributed as dist
from monarch_hpc.tensor.worker.collectives import gloo
from monarch_hpc.tensor.worker.collectives.waits import Waits

gloo._PROOF_LIMIT = timedelta(seconds=float(sys.argv[1]))
devices = []
store, waits = dist.HashStore(), Waits()
store.set_timeout(timedelta(seconds=20))

def join(rank, name):
    try:
        return devices[rank].join(dist.PrefixStore(name, store), rank, 2, timedelta(seconds=20), waits, proven=True)
    except RuntimeError as error:
        return str(error)

def tell(*values):
    print(json.dumps(values), flush=True)

with ThreadPoolExecutor(2) as threads:
    for line in sys.stdin:
        name = line.strip()
        if name == "new ports":
            devices[:] = [gloo.GlooDevice("127.0.0.1") for _ in range(2)]
            tell(*(min(device.ports) for device in devices))
            continue
        first = threads.submit(join, 0, name)
        tell("one rank has come")
        sys.stdin.readline()
        found = [first, threads.submit(join, 1, name)]
        found = [one.result() for one in found]
        tell(*(one if isinstance(one, str) else "joined" for one in found))
        if sys.stdin.readline().strip() == "sum":
            values = [torch.full((3,), rank + 1.0) for rank in range(2)]
            works = [one.issue("allreduce", [value], dist.AllreduceOptions()) for one, value in zip(found, values)]
            for work in works:
                work.wait()
            tell(*(value.tolist() for value in values))
os._exit(0)
"""


class Ranks:
    """The process of the ranks.

    Attributes:
        ports: those of the ranks.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ports: list[int] = []
        self.listen_anew()

    def listen_anew(self) -> None:
        """Change the ports."""
        self.say("new ports")
        self.ports = self.hear()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def hear(self) -> list[Any]:
        assert self._process.stdout is not None
        heard: list[Any] = json.loads(self._process.stdout.readline())
        return heard

    def num_accepted(self, port: int) -> int:
        """Number of connections at a port that have been taken."""
        pid = self._process.pid
        table = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        named = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
        return sum(row[1].endswith(f":{port:04X}") and f"socket:[{row[9]}]" in named for row in table) - 1


@contextlib.contextmanager
def started() -> Iterator[Ranks]:
    command = [sys.executable, "-c", RANKS, "5"]
    with child(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
        yield Ranks(process)


class Strangers(contextlib.ExitStack):
    """Connections of processes that are not of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._all: list[socket.socket] = []

    def dial(self, port: int, number: int) -> bool:
        """Connect, and send the number of a connection; tell whether something answered."""
        try:
            stranger = self.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.5))
        except TimeoutError:
            return False
        stranger.sendall(struct.pack("<q", number))
        self._all.append(stranger)
        return True

    def received(self) -> bytes:
        """What they have been sent."""
        got = b""
        for stranger in self._all:
            with contextlib.suppress(TimeoutError):
                got += stranger.recv(4096)
        return got


def attack(ranks: Ranks, name: str) -> tuple[list[str], bytes]:
    """Dial a rank before the other one does; return what became of the two, and what the strangers got."""
    port = ranks.ports[0]
    with Strangers() as strangers:
        ranks.say(name)
        ranks.hear()
        for number in range(NUM_NUMBERS):
            wait_until("an open port", functools.partial(strangers.dial, port, number), PATIENCE_S)
        wait_until("them to be taken", lambda: ranks.num_accepted(port) >= NUM_NUMBERS, PATIENCE_S)
        ranks.say("the other rank comes")
        outcomes = ranks.hear()
        ranks.say("next")
        return outcomes, strangers.received()


def test_a_stranger_passes_for_no_rank() -> None:
    with started() as ranks:
        outcomes, got = attack(ranks, "first")
        for number in range(NUM_ATTEMPTS):
            if got:
                break
            assert outcomes == ["joined", "joined"]  # the other rank is the one that listens
            ranks.listen_anew()
            outcomes, got = attack(ranks, f"again {number}")
    assert got, "the stranger has not been taken for a rank by gloo: the attack is none"
    assert all("has not been proved to be between them" in one for one in outcomes), outcomes


def may_filter() -> bool:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        admit_connections({port}, False)
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
        except TimeoutError:
            return True
        return False


def test_a_port_of_gloo_is_open_only_while_a_group_is_made() -> None:
    if not may_filter():
        pytest.skip("the kernel lets only root filter packets of TCP")
    with started() as ranks, Strangers() as strangers:
        assert not any(strangers.dial(port, 0) for port in ranks.ports)
        for name in ("one", "another"):
            ranks.say(name)
            ranks.hear()
            ranks.say("the other rank comes")
            assert ranks.hear() == ["joined", "joined"]
            assert not any(strangers.dial(port, number) for port in ranks.ports for number in range(3))
            ranks.say("sum")
            assert ranks.hear() == [[3.0] * 3] * 2
            assert sum(map(ranks.num_accepted, ranks.ports)) == 1
