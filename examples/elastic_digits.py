"""Data-parallel training that loses a proc in the middle, heals, and goes on: handwritten digits of scikit-learn.

    monarch-hpc run --local 2 examples/elastic_digits.py

After each epoch the trainers are checkpointed. When a proc dies, the call of that epoch fails; `heal` starts it again
in its place, with its trainer and the state of the last checkpoint, and all trainers repeat the epoch from there.
"""

import copy
import os
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import monarch_hpc
from monarch_hpc import Actor, MeshDied, current_rank, endpoint, spmd

NUM_EPOCHS = 16
LOST_IN = 7  # the epoch in which the last proc dies
BATCH_SIZE = 64  # images in one step, over all procs
NUM_TEST = 360


class Trainer(Actor):
    """One rank: a copy of the network and a share of the images. B = images, P = pixels."""

    def __init__(self, images_BP: torch.Tensor, labels_B: torch.Tensor, num_ranks: int) -> None:
        torch.manual_seed(0)  # the same initial weights on all ranks
        torch.set_num_threads(1)
        rank = current_rank().rank
        self.images_BP, self.labels_B = images_BP[rank::num_ranks], labels_B[rank::num_ranks]
        self.batch_size = max(1, BATCH_SIZE // num_ranks)
        self.num_steps = len(images_BP) // num_ranks // self.batch_size
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=4e-3)
        self.kept: dict[str, Any] = self.__checkpoint__()

    def __checkpoint__(self) -> dict[str, Any]:
        self.kept = copy.deepcopy({"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()})
        return self.kept

    def __restore__(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    @endpoint
    def prepare(self) -> None:
        """Begin from the last checkpoint: survivors of a death may have gone further, and not all as far."""
        self.network.load_state_dict(self.kept["network"])
        self.optimizer.load_state_dict(copy.deepcopy(self.kept["optimizer"]))
        self.model = nn.parallel.DistributedDataParallel(self.network)

    @endpoint
    def train_epoch(self, epoch: int, victim: int) -> float:
        """Return the mean loss over the batches; the rank *victim* dies on the way."""
        shuffle = torch.Generator().manual_seed(epoch)
        order_B = torch.randperm(len(self.images_BP), generator=shuffle)
        total = 0.0
        for step, batch in enumerate(order_B[: self.num_steps * self.batch_size].split(self.batch_size)):
            if current_rank().rank == victim and step == self.num_steps // 2:
                os._exit(1)
            loss = nn.functional.cross_entropy(self.model(self.images_BP[batch]), self.labels_B[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / self.num_steps

    @endpoint
    def accuracy(self, images_BP: torch.Tensor, labels_B: torch.Tensor) -> float:
        with torch.no_grad():
            return (self.model(images_BP).argmax(1) == labels_B).float().mean().item()


digits = load_digits()
order_B = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
images_BP = torch.tensor(digits.data, dtype=torch.float32)[order_B] / 16
labels_B = torch.tensor(digits.target)[order_B]
test_BP, train_BP = images_BP[:NUM_TEST], images_BP[NUM_TEST:]
test_B, train_B = labels_B[:NUM_TEST], labels_B[NUM_TEST:]

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}, preload=["torch", "torch._dynamo"])
trainers = procs.spawn("trainer", Trainer, train_BP, train_B, len(procs))
spmd(procs).init()
trainers.prepare.call().get()
procs.checkpoint()
epoch, victim = 1, len(procs) - 1
while epoch <= NUM_EPOCHS:
    try:
        losses = trainers.train_epoch.call(epoch, victim if epoch == LOST_IN else -1).get()
    except MeshDied:
        healed = procs.heal("respawn")
        spmd(procs).init()
        trainers.prepare.call().get()
        print(f"epoch {epoch:2d}  healed ranks {list(healed.respawned)} in {healed.took_s:.2f} s", flush=True)
        victim = -1
        continue
    procs.checkpoint()
    print(f"epoch {epoch:2d}  loss {sum(losses.values()) / len(procs):.4f}", flush=True)
    epoch += 1
accuracy = trainers.slice(**dict.fromkeys(procs.extent, 0)).accuracy.call_one(test_BP, test_B).get()
print(f"test accuracy {accuracy:.1%}, {procs.heals} heal")
if accuracy < 0.95 or procs.heals != 1:
    raise SystemExit(f"expected at least 95 % on {NUM_TEST} images after one heal, got {accuracy:.1%}")
