"""Random traffic to procs that are killed and started again obeys the laws of calls, and no call reaches a later life.

``HISTORY_SEEDS`` and ``HISTORY_STEPS`` are those of `tests.system.calls.test_history`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc import HostMesh, ProcMesh, Restart
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.history.checker import Gone, Sent, check
from monarch_hpc.testing.history.lives import check_last_lives, history_of_lives
from monarch_hpc.testing.history.load import (
    PATIENCE_S,
    Answerer,
    Forwarder,
    RandomSender,
    close_notes,
    note,
    process_name,
)
from tests.system.support.controlling import controlled, settle

_STEPS = int(os.environ.get("HISTORY_STEPS", "150"))
_SEEDS = [int(word) for word in os.environ.get("HISTORY_SEEDS", "1").split(",")]
_NUM_KILLS = 4
_POLICY = Restart("always", max_restarts=1000, window_s=1.0, backoff_s=(0, 0.05))


@pytest.fixture(scope="module", params=[16, 1], ids=["direct", "tree"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    loaded = load({"procs.stop_s": 1.0}).config
    transport = replace(loaded.transport, mailbox_bytes=2**20, cast_direct=request.param)
    with controlled(replace(loaded, transport=transport)) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


def drive(sender: RandomSender, seed: int, errors: list[BaseException], done: list[int]) -> None:
    """Send at random, from one thread of the program."""
    dice = random.Random(seed)
    try:
        for _ in range(_STEPS):
            sender.step(dice)
            sender.read_some(dice.randrange(20) if dice.random() < 0.2 else 20)
            done.append(1)
    except BaseException as error:  # noqa: BLE001 raised again in the test
        errors.append(error)


def kill_some(procs: ProcMesh, folder: str, dice: random.Random, done: list[int]) -> list[int]:
    """Kill procs in the course of the traffic, sometimes again before they are back; return their pids."""
    killed = []
    for kill in range(_NUM_KILLS):
        due = 2 * _STEPS * (kill + 1) // (_NUM_KILLS + 1)
        wait_until("the traffic", partial(_has, done, due))
        rank = dice.randrange(4)
        proc = procs.procs[rank]
        note(folder, Gone([f"node{rank}"]))
        if proc.pid not in killed:
            os.kill(proc.pid, signal.SIGKILL)
            killed.append(proc.pid)
        if dice.random() < 0.7:
            wait_until("the restart", partial(_lives_again, procs, rank, proc.restarts))
    return killed


def _has(some: ProcMesh | list[int], due: int) -> bool:
    return (some.heals if isinstance(some, ProcMesh) else len(some)) >= due


def _lives_again(procs: ProcMesh, rank: int, restarts: int) -> bool:
    return procs.procs[rank].restarts > restarts


@pytest.mark.slow
@pytest.mark.parametrize("seed", _SEEDS)
def test_calls_end_with_the_life_that_they_were_for(
    hosts: HostMesh, tmp_path: Path, faults: list[MeshFailure], seed: int
) -> None:
    folder, dice = str(tmp_path), random.Random(seed)
    print(f"HISTORY_SEEDS={seed} HISTORY_STEPS={_STEPS}")
    with (
        contextlib.ExitStack() as after,
        hosts.spawn_procs(per_host={"gpus": 2}, restart=_POLICY) as procs,
        hosts.spawn_procs(per_host={"gpus": 2}) as others,
    ):
        after.callback(close_notes, folder)
        nodes = {"node": procs.spawn("node", Answerer, folder, "node")}
        relays = others.spawn("relay", Forwarder, folder, nodes)
        senders = [RandomSender(folder, f"sender{index}", nodes, relays) for index in range(2)]
        errors: list[BaseException] = []
        done: list[int] = []
        threads = [
            threading.Thread(target=drive, args=(sender, dice.randrange(2**31), errors, done)) for sender in senders
        ]
        for thread in threads:
            thread.start()
        killed = kill_some(procs, folder, dice, done)
        for thread in threads:
            thread.join(4 * PATIENCE_S)
            assert not thread.is_alive(), "a sender is held back for ever"
        assert errors == []
        wait_until("all restarts", partial(_has, procs, len(killed)))
        for sender in senders:
            sender.close()
        relays.close.call().get(2 * PATIENCE_S)
        pids = [proc.pid for proc in procs.procs]
        casts = current_runtime().casts
        num_sent = casts.num_sent
        note(folder, Sent("the test", 0, [f"node{rank}" for rank in range(4)]))
        nodes["node"].plain.call("the test", 0, b"", 0.0).get(PATIENCE_S)
        assert casts.num_sent - num_sent == (casts.max_direct == 1)  # replaced or not, in one frame
    violations = check(history_of_lives(folder, list(map(process_name, killed))))
    assert not violations, "\n".join(map(str, violations[:20]))
    num_checked, violations = check_last_lives(folder, "node", list(map(process_name, pids)))
    assert num_checked and not violations, "\n".join(map(str, violations[:20]))
    assert faults == []
