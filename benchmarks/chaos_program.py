"""The program that `benchmarks.chaos` runs on an allocation: suffers one fault after the other, amid random traffic.

It reads one JSON object per line, an order, and prints one for each:

    {"fault": NAME, "ranks": [0], "args": [], "inside": true, "heals": true}

The procs are two on each of the second and third host. Ranks are those that must die. With *inside*, the first of them
does the fault to itself, or, without ranks, each; else the program says that it is ready, and gets the time of the
fault. The last order is `{"fault": ""}`. Times are of the monotonic clock, which all hosts of one machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from typing import Any

import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import ActorDied, SupervisionError, concurrent_endpoint, endpoint
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing.faults import Faulty
from monarch_hpc.testing.history.checker import Gone, check
from monarch_hpc.testing.history.lives import check_last_lives, history_of_lives
from monarch_hpc.testing.history.load import Answerer, RandomSender, close_notes, note, process_name

_PATIENCE_S = 90.0
"""Time for a call to end after a fault; no detection may take a third of it."""
_STEP_S = 0.01
"""Mean pause of a sender between two messages: traffic in which faults happen, not a measurement of its rate."""
_NUM_SENDERS = 2
_NUM_RANKS = 4


class _Target(Faulty):
    """Suffers faults amid a call that does not end by itself."""

    @endpoint
    def life(self) -> str:
        """Return the name of this process in the history."""
        return process_name(os.getpid())

    @concurrent_endpoint
    async def wait(self) -> None:
        """Do not return."""
        await asyncio.Event().wait()


class _Traffic:
    """Threads that send at random until they are told to stop."""

    def __init__(self, folder: str, nodes: Any, seed: int) -> None:
        self.senders = [RandomSender(folder, f"sender{index}", {"node": nodes}) for index in range(_NUM_SENDERS)]
        self.errors: list[str] = []
        self._over = threading.Event()
        dice = random.Random(seed)
        self._threads = [
            threading.Thread(target=self._drive, args=(sender, random.Random(dice.random())), daemon=True)
            for sender in self.senders
        ]
        for thread in self._threads:
            thread.start()

    def _drive(self, sender: RandomSender, dice: random.Random) -> None:
        try:
            while not self._over.wait(dice.expovariate(1 / _STEP_S)):
                sender.step(dice)
                sender.read_some(20)
        except BaseException as error:  # noqa: BLE001 it is reported
            self.errors.append(f"{sender.name}: {type(error).__name__}: {error}")

    def stop(self) -> int:
        """Stop sending; return the number of senders that are blocked."""
        self._over.set()
        for thread in self._threads:
            thread.join(2 * _PATIENCE_S)
        return sum(thread.is_alive() for thread in self._threads)


class _Campaign:
    def __init__(self, folder: str, seed: int) -> None:
        self.folder = folder
        hosts = monarch_hpc.hosts()
        self.hosts = hosts.slice(hosts=slice(1, 3))
        self.procs = self.hosts.spawn_procs(per_host={"gpus": 2})
        self.targets: Any = self.procs.spawn("target", _Target)
        nodes = self.procs.spawn("node", Answerer, folder, "node")
        self.lives: list[str] = list(self.targets.life.call().get(_PATIENCE_S).values())
        self.killed: list[str] = []
        self.traffic = _Traffic(folder, nodes, seed)

    def one(self, rank: int) -> Any:
        """The target of one rank."""
        return self.targets.slice(hosts=rank // 2, gpus=rank % 2)

    def suffer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order; return what came of it."""
        ranks = order["ranks"]
        note(self.folder, Gone([f"node{rank}" for rank in ranks]))
        waits = {rank: self.one(rank).wait.call_one() for rank in range(_NUM_RANKS)}
        self.targets.pid.call().get(_PATIENCE_S)  # so all waits have begun
        ends: dict[int, tuple[float, BaseException | None]] = {}
        threads = [threading.Thread(target=self._measure, args=(rank, waits[rank], ends)) for rank in ranks]
        for thread in threads:
            thread.start()
        if order["inside"]:
            victims = ranks[:1] or range(_NUM_RANKS)
            at_s = time.monotonic()
            suffering = [self.one(rank).suffer.call_one(order["fault"], *order["args"]) for rank in victims]
        else:
            suffering = []
            _say(ready=True)
            at_s = json.loads(sys.stdin.readline())["at_s"]
        for thread in threads:
            thread.join()
        found = self._judge(order, at_s, ends)
        for rank, future in waits.items():
            if rank not in ranks and not future.cancel():
                found["false_deaths"].append(f"{rank}: {future.exception(0.0)}")
        for future in suffering:
            with contextlib.suppress(Exception):
                future.get(_PATIENCE_S)
        if order["heals"]:
            found |= self._heal(ranks)
        return found

    def _measure(self, rank: int, future: Any, ends: dict[int, tuple[float, BaseException | None]]) -> None:
        try:
            error = future.exception(_PATIENCE_S)
        except TimeoutError:
            return
        ends[rank] = time.monotonic(), error

    def _judge(
        self, order: dict[str, Any], at_s: float, ends: dict[int, tuple[float, BaseException | None]]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"took_s": [], "kinds": [], "causes": [], "hung": 0, "false_deaths": []}
        for rank in range(_NUM_RANKS):
            if rank not in order["ranks"]:
                error = self.one(rank).pid.call_one().exception(_PATIENCE_S)
                if error is not None:
                    found["false_deaths"].append(f"{rank}: {type(error).__name__}: {error}")
                continue
            if rank not in ends:
                found["hung"] += 1
                continue
            ended_s, error = ends[rank]
            found["took_s"].append(ended_s - at_s)
            found["kinds"].append(str(error.kind) if isinstance(error, ActorDied) else type(error).__name__)
            found["causes"].append(str(error))
        return found

    def _heal(self, ranks: list[int]) -> dict[str, Any]:
        begun_s = time.monotonic()
        self.killed += [self.lives[rank] for rank in ranks]
        if ranks:
            self.procs.heal("respawn", _PATIENCE_S)
        healed_s = time.monotonic() - begun_s
        now = list(self.targets.life.call().get(_PATIENCE_S).values())
        changed = [rank for rank in range(_NUM_RANKS) if (now[rank] != self.lives[rank]) != (rank in ranks)]
        self.lives = now
        begun_s = time.monotonic()
        with self.hosts.slice(hosts=0).spawn_procs(name="fresh") as fresh:
            fresh.initialized.get(_PATIENCE_S)
        fresh_s = time.monotonic() - begun_s
        return {"healed_s": healed_s if ranks else fresh_s, "wrong_lives": changed}

    def close(self, *, alive: bool) -> dict[str, Any]:
        """Stop the traffic, and check the history."""
        hung = self.traffic.stop()
        violations = list(self.traffic.errors)
        if alive and not hung:
            for sender in self.traffic.senders:
                sender.close()
            _, wrong = check_last_lives(self.folder, "node", self.lives)
            violations += map(str, [*check(history_of_lives(self.folder, self.killed)), *wrong])
        return {
            "hung": hung,
            "violations": violations[:20],
            "messages": sum(sender.number for sender in self.traffic.senders),
        }


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    """Suffer what standard input says."""
    monarch_hpc.actor.unhandled_fault_hook = lambda _failure: None
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder, contextlib.ExitStack() as after:
        after.callback(close_notes, folder)
        campaign = _Campaign(folder, int(sys.argv[1]))
        _say(directory=str(Controller.instance().tenancies.all()[0].directory))
        alive = True
        for line in sys.stdin:
            order = json.loads(line)
            if not order["fault"]:
                break
            try:
                _say(**campaign.suffer(order))
            except (SupervisionError, TimeoutError) as error:
                _say(problem=f"{type(error).__name__}: {error}")
            alive = order["heals"]
        _say(**campaign.close(alive=alive))


if __name__ == "__main__":
    main()
