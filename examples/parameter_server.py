"""A parameter server: workers fit one linear model together, each at its own pace.

    monarch-hpc run --local 2 examples/parameter_server.py

The server owns the weights. Each worker pulls them, computes a gradient on its share of the data, and pushes the
gradient; no worker waits for the slowest. The server handles one message at a time, so no push is lost and no lock is
needed.
"""

from __future__ import annotations

import numpy as np

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, current_rank, endpoint

NUM_WEIGHTS = 8
NUM_ROWS = 400  # in each worker's share
NUM_STEPS = 150
BATCH_SIZE = 20
RATE = 0.02

TRUE_WEIGHTS = np.arange(1.0, NUM_WEIGHTS + 1)


class Server(Actor):
    def __init__(self) -> None:
        self.weights = np.zeros(NUM_WEIGHTS)
        self.version = 0

    @endpoint
    def pull(self) -> tuple[int, np.ndarray]:
        return self.version, self.weights

    @endpoint
    def push(self, gradient: np.ndarray) -> None:
        self.weights = self.weights - RATE * gradient
        self.version += 1


class Worker(Actor):
    """One share of the data. R = rows, W = weights."""

    def __init__(self, server: ActorMesh[Server]) -> None:
        self.server = server
        self.random = np.random.default_rng(current_rank().rank)
        self.rows_RW = self.random.normal(size=(NUM_ROWS, NUM_WEIGHTS))
        self.targets_R = self.rows_RW @ TRUE_WEIGHTS + 0.01 * self.random.normal(size=NUM_ROWS)

    @endpoint
    def train(self) -> int:
        """Return the largest number of other workers' pushes between a pull and the push that follows it."""
        stalest = 0
        for _ in range(NUM_STEPS):
            version, weights = self.server.pull.call_one().get()
            batch = self.random.integers(NUM_ROWS, size=BATCH_SIZE)
            error_R = self.rows_RW[batch] @ weights - self.targets_R[batch]
            # Needs no answer: order is kept, so the next pull of this worker sees this push.
            self.server.push.broadcast(self.rows_RW[batch].T @ error_R / BATCH_SIZE)
            stalest = max(stalest, self.server.pull.call_one().get()[0] - version - 1)
        return stalest

    @endpoint
    def loss(self, weights: np.ndarray) -> float:
        return float(np.mean((self.rows_RW @ weights - self.targets_R) ** 2))


hosts = monarch_hpc.hosts()
first = hosts.slice(**dict.fromkeys(hosts.extent.labels, 0))
server = first.spawn_procs(name="server").spawn("server", Server)
workers = hosts.spawn_procs(per_host={"workers": 2}, name="workers").spawn("worker", Worker, server)

for point, stalest in workers.train.stream().items():  # as they finish
    print(f"worker {point} is done; staleness at most {stalest} pushes")

version, weights = server.pull.call_one().get()
losses = list(workers.loss.call(weights).get().values())
print(f"{version} pushes, mean loss {np.mean(losses):.5f}, weights {np.round(weights, 2)}")
if version != NUM_STEPS * len(workers):
    raise SystemExit(f"{NUM_STEPS * len(workers)} gradients were pushed, and {version} arrived")
if not np.allclose(weights, TRUE_WEIGHTS, atol=0.1):
    raise SystemExit(f"the weights should be about {TRUE_WEIGHTS}")
