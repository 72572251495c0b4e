"""Two actors hit a ball back and forth directly; messages carry references to actors and ports.

monarch-hpc run --local 2 examples/ping_pong.py
"""

from __future__ import annotations

import time

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, Channel, Port, endpoint

NUM_HITS = 2000


class Player(Actor):
    def __init__(self) -> None:
        self.num_hits = 0

    @endpoint
    def meet(self, other: ActorMesh[Player]) -> None:
        self.other = other  # a reference: calls through it go straight to the other proc

    @endpoint
    def hit(self, left: int, over: Port[str]) -> None:
        self.num_hits += 1
        if left:
            # Sent without waiting: this call returns before the ball comes back.
            self.other.hit.broadcast(left - 1, over)
        else:
            over.send(f"the last hit was on {monarch_hpc.context().proc.host}")

    @endpoint
    def count(self) -> int:
        return self.num_hits


players = monarch_hpc.hosts().flatten("side").slice(side=slice(0, 2)).spawn_procs().spawn("player", Player)
if len(players) < 2:
    raise SystemExit("ping_pong needs two hosts: monarch-hpc run --local 2 examples/ping_pong.py")
left, right = players.slice(side=0), players.slice(side=1)
left.meet.call_one(right).get()
right.meet.call_one(left).get()

port, receiver = Channel.open(once=True)
begun_s = time.perf_counter()
left.hit.broadcast(NUM_HITS - 1, port)
print(receiver.recv().get(timeout=60))
took_s = time.perf_counter() - begun_s
print(f"{NUM_HITS} hits, {took_s / NUM_HITS * 1e6:.0f} microseconds each")

counts = players.count.call().get()
if list(counts.values()) != [NUM_HITS // 2, NUM_HITS // 2]:
    raise SystemExit(f"each player should have hit {NUM_HITS // 2} times: {counts}")
