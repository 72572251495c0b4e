"""The dining philosophers: actors that wait for each other without deadlock.

    monarch-hpc run --local 2 examples/dining_philosophers.py

Forks and philosophers are actors. One fork lies between any two seats, and a philosopher needs both neighbouring forks
to eat. `take` is a concurrent endpoint: while one philosopher waits in it, the fork can still be given back. Every
philosopher takes the fork with the lower number first, so the philosophers cannot wait for each other in a cycle.
"""

from __future__ import annotations

import asyncio
import random

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, concurrent_endpoint, current_rank, endpoint

NUM_MEALS = 20


class Fork(Actor):
    def __init__(self) -> None:
        self.free = asyncio.Condition()
        self.holder: int | None = None
        self.num_taken = 0

    @concurrent_endpoint
    async def take(self, philosopher: int) -> None:
        async with self.free:
            await self.free.wait_for(lambda: self.holder is None)
            self.holder = philosopher
            self.num_taken += 1

    @concurrent_endpoint
    async def give_back(self, philosopher: int) -> None:
        async with self.free:
            if self.holder != philosopher:
                raise RuntimeError(f"philosopher {philosopher} gives back a fork that {self.holder} holds")
            self.holder = None
            self.free.notify()

    @endpoint
    async def count(self) -> int:
        return self.num_taken


class Philosopher(Actor):
    def __init__(self, forks: ActorMesh[Fork]) -> None:
        self.seat = current_rank().rank
        right = (self.seat + 1) % len(forks)
        self.first = forks.slice(seat=min(self.seat, right))
        self.second = forks.slice(seat=max(self.seat, right))

    @endpoint
    async def dine(self, num_meals: int) -> int:
        for _ in range(num_meals):
            await self.first.take.call_one(self.seat)
            await self.second.take.call_one(self.seat)
            await asyncio.sleep(random.uniform(0, 0.002))  # eats
            await asyncio.gather(*(fork.give_back.call_one(self.seat) for fork in (self.first, self.second)))
        return num_meals


procs = monarch_hpc.hosts().spawn_procs(per_host={"chairs": 3}).flatten("seat")
forks = procs.spawn("fork", Fork)
philosophers = procs.spawn("philosopher", Philosopher, forks)

# A deadlock would raise CallTimeout after a minute, with the actors that did not answer.
meals = philosophers.dine.options(timeout=60).call(NUM_MEALS).get()
for point, num_meals in meals:
    print(f"philosopher {point['seat']} ate {num_meals} times")

taken = forks.count.call().get()
if set(taken.values()) != {2 * NUM_MEALS}:
    raise SystemExit(f"each fork should have been taken {2 * NUM_MEALS} times: {taken}")
