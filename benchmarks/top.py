"""Measures the CPU time of a refresh of `monarch-hpc top` with 512 procs: `python -m benchmarks.top`.

Answers of 64 hosts with 8 procs each, two actors in each, come as the frames in which they would. What counts is what
the command does with them: it reads them, and draws a screen of 50 lines. Connections to the head are not part of it.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monarch_hpc.attach.tables import rows
from monarch_hpc.cli.tables.top import WatchedHosts
from monarch_hpc.cli.tables.top_view import TopScreen
from monarch_hpc.telemetry.views.sighting import LOOKED_AT, Sighting
from monarch_hpc.wire.control.message import encode, make, parse
from monarch_hpc.wire.control.questions import Portion, Rows
from monarch_hpc.wire.tables.calls import (
    CALLS,
    PROGRAM_MESH,
    ActorSeen,
    EndpointCount,
    ProcCalls,
    RunningCall,
    Scene,
    SentCall,
    Wait,
)
from monarch_hpc.wire.tables.procs import PROCS, ProcRow

_NUM_HOSTS, _PER_HOST = 64, 8
_NUM_PICTURES = 5
_NUM_ROUNDS = 100
_SCREEN = 160, 50


def host_rows(host: int, t: float, noise: random.Random) -> tuple[list[ProcCalls], list[ProcRow]]:
    """What the procs of a host do at some time: each trains, and every fourth waits for data."""
    calls, procs = [], []
    for rank in range(host * _PER_HOST, (host + 1) * _PER_HOST):
        name, own = f"node{host:03d}", f"{rank * 7919 + 0x1234567890AB:x}"
        trainer, data = f"{rank + 0x99AABBCCDDEE:x}", f"{rank + 0x77AABBCCDDEE:x}"
        waits = rank % 4 == 0
        scene = Scene(
            "",
            own,
            [ActorSeen(trainer, "trainer", rank, "ready", "", t), ActorSeen(data, "data", rank, "ready", "", t)],
            [RunningCall(trainer, "step", 1000 + int(t), "feedbeef", "login", round(noise.random(), 6), 1e-4)],
            [Wait(trainer, [55], 1, "", 0.3)] if waits else [],
            [SentCall(55, trainer, 1, own, name, data, "data", "next", 0.3)] if waits else [],
            int(waits),
            [count("trainer", "step", t, noise), count("data", "next", t, noise)],
        )
        row = "beefcafe", 1, rank, name, 4000 + rank, "ready", ""
        used = 300 << 20, round(t + noise.random(), 2)
        calls.append(ProcCalls(*row, scene, *used))
        procs.append(ProcRow(*row, *used))
    return calls, procs


def count(actor: str, endpoint: str, t: float, noise: random.Random) -> EndpointCount:
    """Statistics of an endpoint."""
    ran, queued = ([0] * 10 + [noise.randrange(99) for _ in range(num)] for num in (8, 2))
    return EndpointCount(actor, endpoint, 100 + int(t), 0, 12.3 + t, 1.0, ran, 0.5, 0.1, queued)


def frames_at(t: float, noise: random.Random) -> dict[str, bytes]:
    """The frames with the answers of all hosts and of the program, by table."""
    number = 1000 + int(t)
    sent = [SentCall(number, "0", 512, "", "", "0", "trainer", "step", 0.2)]
    scene = Scene("", "feedbeef", [], [], [Wait("0", [number], 1, "", 0.2)], sent, 1, [])
    row = "beefcafe", PROGRAM_MESH, 0, "login", 77, "ready", ""
    answers: list[tuple[Sequence[ProcCalls], Sequence[ProcRow]]] = [
        ([ProcCalls(*row, scene, 1 << 28, t)], [ProcRow(*row, 1 << 28, t)])
    ]
    answers += [host_rows(host, t, noise) for host in range(_NUM_HOSTS)]
    return {
        CALLS.name: encode(
            Rows(0, [Portion("host", CALLS.fit(calls, {}, None, LOOKED_AT)[0]) for calls, _ in answers], [], [])
        ),
        PROCS.name: encode(Rows(0, [Portion("host", PROCS.render(procs, {})) for _, procs in answers], [], [])),
    }


def main() -> None:
    """Print the median, or for programs that compare versions one time for each line on stdin."""
    noise = random.Random(1)
    pictures = [frames_at(float(t), noise) for t in range(_NUM_PICTURES)]
    now = 0

    def ask(_head: object, question: Any, *_rest: object) -> tuple[Rows, str, str]:
        return make(Rows, parse(pictures[now][question.table])[1]), "", ""

    vars(rows)["ask"] = ask  # the wire is not measured
    hosts, screen, seen = WatchedHosts({"dev": Path("dev")}, None), TopScreen(), Sighting()
    times = []
    gc.freeze()  # as the command does
    asked = sys.stdin if sys.argv[1:] == ["-"] else range(_NUM_ROUNDS)
    for place, _ in enumerate(asked):
        now = place % _NUM_PICTURES
        began_s = time.process_time()
        seen = hosts.look(seen)
        screen.render(seen, *_SCREEN)
        times.append((time.process_time() - began_s) * 1e3)
        if asked is sys.stdin:
            print(times[-1], flush=True)
    if asked is not sys.stdin:
        print(f"CPU time of a refresh with {_NUM_HOSTS * _PER_HOST} procs: {statistics.median(times[5:]):.1f} ms")


if __name__ == "__main__":
    main()
