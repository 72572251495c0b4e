"""Random traffic under deaths, stops and cancels obeys the laws of calls: all events are logged and checked.

``HISTORY_SEEDS=7,8`` runs these seeds, ``HISTORY_SEEDS=random:50`` fifty fresh ones; ``HISTORY_STEPS`` sets the steps
of each sender. A seed determines what is sent; threads and processes race differently in each run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from tests.history.checker import Closed, Ended, Gone, check
from tests.history.load import PATIENCE_S, Node, Relay, Sender, close_notes, note, read_history
from tests.system.support.controlling import controlled, settle

_STEPS = int(os.environ.get("HISTORY_STEPS", "300"))
_NUM_SENDERS = 3
_MAX_OPEN = 40
_WINDOW_BYTES = 2**20
"""Size of a mailbox: small, so that senders block."""


def seeds() -> list[int]:
    """The seeds to run."""
    words = os.environ.get("HISTORY_SEEDS", "1,2,3,4,5,6")
    if words.startswith("random:"):
        return [random.SystemRandom().randrange(2**31) for _ in range(int(words.partition(":")[2]))]
    return [int(word) for word in words.split(",")]


@pytest.fixture(scope="module", params=[16, 1], ids=["direct", "tree"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    """Calls to many: sent directly, or through the agents."""
    loaded = load().config
    transport = replace(loaded.transport, mailbox_bytes=_WINDOW_BYTES, cast_direct=request.param)
    with controlled(replace(loaded, transport=transport)) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


class Run:
    """One run: four procs with two meshes of nodes and one of relays, some senders, and injected faults."""

    def __init__(self, procs: ProcMesh, folder: str, seed: int) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.procs = procs
        self.nodes = {name: procs.spawn(name, Node, folder, name) for name in ("lasting", "mortal")}
        self.relays = procs.spawn("relay", Relay, folder, self.nodes)
        self.senders = [Sender(folder, f"sender{n}", self.nodes, self.relays) for n in range(_NUM_SENDERS)]
        self.errors: list[BaseException] = []
        self.killed: set[int] = set()
        self.num_done = 0

    def drive(self, sender: Sender, seed: int) -> None:
        """Run one sending thread of the program."""
        dice = random.Random(seed)
        try:
            for _ in range(_STEPS):
                sender.step(dice)
                sender.read_some(dice.randrange(_MAX_OPEN) if dice.random() < 0.2 else _MAX_OPEN)
                self.num_done += 1
            sender.close()
        except BaseException as error:  # noqa: BLE001 raised again in the test
            self.errors.append(error)

    def trouble(self) -> None:
        """Inject faults during the traffic, one at a time: suspend procs, stop actors, kill a proc."""
        total = _STEPS * _NUM_SENDERS
        plan = ["freeze", "stop", "freeze", self.dice.choice(["kill", "freeze"])]
        for step, what in enumerate(plan):
            self._until(total * (step + 1) // (len(plan) + 1))
            rank = self.dice.randrange(4)
            proc = self.procs.procs[rank]
            if what == "freeze" and rank not in self.killed:
                os.kill(proc.pid, signal.SIGSTOP)
                time.sleep(self.dice.uniform(0.01, 0.2))  # the passing of time is the point
                os.kill(proc.pid, signal.SIGCONT)
            elif what == "stop":
                note(self.folder, Gone([f"mortal{rank}"]))
                self.nodes["mortal"].slice(hosts=rank // 2, gpus=rank % 2).stop()
            elif what == "kill":
                note(self.folder, Gone([f"{name}{rank}" for name in (*self.nodes, "relay")]))
                self.killed.add(rank)
                os.kill(proc.pid, signal.SIGKILL)

    def _until(self, num_done: int) -> None:
        while self.num_done < num_done and not self.errors:
            time.sleep(0.002)

    def run(self) -> None:
        """Run everything."""
        threads = [
            threading.Thread(target=self.drive, args=(sender, self.dice.randrange(2**31))) for sender in self.senders
        ]
        for thread in threads:
            thread.start()
        self.trouble()
        for thread in threads:
            thread.join(4 * PATIENCE_S)
            assert not thread.is_alive(), "a sender is held back for ever"
        for rank in range(4):
            if rank not in self.killed:
                self.relays.slice(hosts=rank // 2, gpus=rank % 2).close.call_one().get(2 * PATIENCE_S)
        if self.errors:
            raise self.errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds())
def test_random_traffic_keeps_the_laws(hosts: HostMesh, tmp_path: Path, faults: list[MeshFailure], seed: int) -> None:
    print(f"HISTORY_SEEDS={seed} HISTORY_STEPS={_STEPS}")
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        run = Run(procs, str(tmp_path), seed)
        with contextlib.ExitStack() as after:
            after.callback(lambda: print(summary(str(tmp_path))))
            after.callback(lambda: close_notes(str(tmp_path)))
            run.run()
    violations = check(read_history(str(tmp_path)))
    assert not violations, f"seed {seed}: " + "\n".join(map(str, violations[:20]))
    closed = {event.sender for event in read_history(str(tmp_path)) if isinstance(event, Closed)}
    assert len(closed) == _NUM_SENDERS + 4 - len(run.killed)
    del faults[:]


def summary(folder: str) -> str:
    """Summarize the run in a line: a history without events proves nothing."""
    counts: Counter[str] = Counter()
    for event in read_history(folder):
        counts[type(event).__name__.lower()] += 1
        if isinstance(event, Ended):
            counts["cancelled"] += event.cancelled
            counts.update(words for words in event.outcomes.values() if not words.startswith("="))
    return ", ".join(f"{num} {what}" for what, num in sorted(counts.items()))
