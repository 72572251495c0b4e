"""Random traffic under deaths, stops and cancels obeys the laws of calls: all events are logged and checked.

Some actors have coroutines only; some are told of failures of their children by a hook, beside endpoints that wait for
that; some are stopped by a sender amid its calls; and some are called while their procs start.

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
from typing import Any

import pytest

from monarch_hpc import ActorMesh, HostMesh, ProcMesh
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.mesh.host import all_hosts
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing.history.checker import Closed, Concluded, Gone, check
from monarch_hpc.testing.history.coroutines import Guard, Woven
from monarch_hpc.testing.history.load import (
    PATIENCE_S,
    Answerer,
    Forwarder,
    RandomSender,
    close_notes,
    note,
    read_history,
)
from tests.system.support.controlling import controlled, settle

_STEPS = int(os.environ.get("HISTORY_STEPS", "300"))
_NUM_SENDERS = 3
_MAX_OPEN = 40
_WINDOW_BYTES = 2**20
"""Size of a mailbox: small, so that senders block."""


def seeds() -> list[int]:
    """The seeds to run."""
    words = os.environ.get("HISTORY_SEEDS", "1,2,3,4")
    if words.startswith("random:"):
        return [random.SystemRandom().randrange(2**31) for _ in range(int(words.partition(":")[2]))]
    return [int(word) for word in words.split(",")]


@pytest.fixture(scope="module", params=[16, 1], ids=["direct", "tree"])
def hosts(request: pytest.FixtureRequest) -> Iterator[tuple[HostMesh, HostMesh]]:
    """Calls to many: sent directly, or through the agents, of two allocations; the hosts of all procs but the late."""
    loaded = load().config
    transport = replace(loaded.transport, mailbox_bytes=_WINDOW_BYTES, cast_direct=request.param)
    config = replace(loaded, transport=transport)
    with controlled(config) as hosts:
        late_hosts = hosts
        if request.param == 1:
            controller = Controller.instance()
            other = controller.tenancies.open(lambda stack: stack.enter_context(open_local(2, config)))
            late_hosts = all_hosts(controller.door, other.allocation)
        for one in {hosts, late_hosts}:
            with one.spawn_procs() as procs:
                settle(procs)
        yield hosts, late_hosts


def dawdle() -> None:
    """Start slowly, so that calls wait for the launch."""
    time.sleep(0.1)


def break_down() -> None:
    """Fail to start, when calls wait already."""
    dawdle()
    raise RuntimeError("the bootstrap fails")


class Run:
    """One run: four procs with meshes of nodes and of relays, some senders, and injected faults.

    Args:
        late: four procs that start.
        fails: whether they fail to.
    """

    def __init__(self, procs: ProcMesh, late: ProcMesh, folder: str, seed: int, *, fails: bool) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.procs = procs
        kinds: dict[str, type[Any]] = {"lasting": Answerer, "mortal": Answerer, "woven": Woven, "guard": Guard}
        self.nodes: dict[str, ActorMesh[Any]] = {
            name: procs.spawn(name, kind, folder, name) for name, kind in kinds.items()
        }
        self.relays = procs.spawn("relay", Forwarder, folder, self.nodes)
        if fails:
            note(folder, Gone([f"late{rank}" for rank in range(4)]))
        all_nodes = {**self.nodes, "late": late.spawn("late", self.dice.choice([Answerer, Woven]), folder, "late")}
        self.senders = [RandomSender(folder, f"sender{n}", all_nodes, self.relays) for n in range(_NUM_SENDERS)]
        # By sender and step: the actor of which mesh and rank it stops. The thread of `trouble` stops others.
        self.stopped = self.dice.randrange(4)
        self.stops = {
            (0, self.dice.randrange(_STEPS)): ("mortal", self.stopped),
            (1, self.dice.randrange(_STEPS)): ("guard", self.dice.randrange(4)),
        }
        self.errors: list[BaseException] = []
        self.killed: set[int] = set()
        self.num_done = 0

    def drive(self, index: int, seed: int) -> None:
        """Run one sending thread of the program."""
        dice, sender = random.Random(seed), self.senders[index]
        try:
            for step in range(_STEPS):
                if (index, step) in self.stops:
                    sender.stop(*self.stops[index, step])
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
                rank = (self.stopped + 1) % 4
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
            threading.Thread(target=self.drive, args=(index, self.dice.randrange(2**31)))
            for index in range(_NUM_SENDERS)
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
def test_random_traffic_keeps_the_laws(
    hosts: tuple[HostMesh, HostMesh], tmp_path: Path, faults: list[MeshFailure], seed: int
) -> None:
    print(f"HISTORY_SEEDS={seed} HISTORY_STEPS={_STEPS}")
    fails = seed % 3 == 0
    bootstrap = break_down if fails else dawdle
    with (
        hosts[0].spawn_procs(per_host={"gpus": 2}) as procs,
        hosts[1].spawn_procs(per_host={"gpus": 2}, bootstrap=bootstrap) as late,
    ):
        run = Run(procs, late, str(tmp_path), seed, fails=fails)
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
        if isinstance(event, Concluded):
            counts["cancelled"] += event.cancelled
            counts.update(words for words in event.outcomes.values() if not words.startswith("="))
    return ", ".join(f"{num} {what}" for what, num in sorted(counts.items()))
