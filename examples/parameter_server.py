"""A parameter server: workers fit one linear model together, each at its own pace.

    monarch-hpc run --local 2 examples/parameter_server.py

The server owns the weights. Each worker reads the last version of them straight from the server's memory, computes a
gradient on its share of the data, and pushes the gradient; no worker waits for the slowest. The server handles one
message at a time, so no push is lost and no lock is needed; reads cost it no time at all.
"""

from __future__ import annotations

import numpy as np

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, current_rank, endpoint
from monarch_hpc.rdma import RDMAState

NUM_WEIGHTS = 8
NUM_ROWS = 400  # in each worker's share
NUM_STEPS = 150
BATCH_SIZE = 20
RATE = 0.02

TRUE_WEIGHTS = np.arange(1.0, NUM_WEIGHTS + 1)


class Server(Actor):
    def __init__(self) -> None:
        self.weights = np.zeros(NUM_WEIGHTS)
        self.state = RDMAState({"weights": self.weights}, copies=2)

    @endpoint
    def share(self) -> RDMAState:
        return self.state

    @endpoint
    def push(self, gradient: np.ndarray) -> int:
        """Return the version of the weights that has this gradient."""
        self.weights -= RATE * gradient
        return self.state.publish()


class Worker(Actor):
    """One share of the data. R = rows, W = weights."""

    def __init__(self, server: ActorMesh[Server], state: RDMAState) -> None:
        self.server, self.state = server, state
        self.random = np.random.default_rng(current_rank().rank)
        self.rows_RW = self.random.normal(size=(NUM_ROWS, NUM_WEIGHTS))
        self.targets_R = self.rows_RW @ TRUE_WEIGHTS + 0.01 * self.random.normal(size=NUM_ROWS)

    @endpoint
    def train(self) -> int:
        """Return the largest number of other workers' pushes between a read and the push that follows it."""
        stalest = 0
        weights = np.empty(NUM_WEIGHTS)
        for _ in range(NUM_STEPS):
            version = self.state.read_into({"weights": weights}).get()
            batch = self.random.integers(NUM_ROWS, size=BATCH_SIZE)
            error_R = self.rows_RW[batch] @ weights - self.targets_R[batch]
            pushed = self.server.push.call_one(self.rows_RW[batch].T @ error_R / BATCH_SIZE).get()
            stalest = max(stalest, pushed - version - 1)
        return stalest

    @endpoint
    def loss(self, weights: np.ndarray) -> float:
        return float(np.mean((self.rows_RW @ weights - self.targets_R) ** 2))


hosts = monarch_hpc.hosts()
first = hosts.slice(**dict.fromkeys(hosts.extent, 0))
server = first.spawn_procs(name="server").spawn("server", Server)
state = server.share.call_one().get()
workers = hosts.spawn_procs(per_host={"workers": 2}, name="workers").spawn("worker", Worker, server, state)

for point, stalest in workers.train.stream().items():  # as they finish
    print(f"worker {point} is done; staleness at most {stalest} pushes")

num_pushes, weights = state.version().get() - 1, state.read().get()["weights"]
losses = list(workers.loss.call(weights).get().values())
print(f"{num_pushes} pushes, mean loss {np.mean(losses):.5f}, weights {np.round(weights, 2)}")
if num_pushes != NUM_STEPS * len(workers):
    raise SystemExit(f"{NUM_STEPS * len(workers)} gradients were pushed, and {num_pushes} arrived")
if not np.allclose(weights, TRUE_WEIGHTS, atol=0.1):
    raise SystemExit(f"the weights should be about {TRUE_WEIGHTS}")
