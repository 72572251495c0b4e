"""Data-parallel training on the handwritten digits of scikit-learn: 1,797 real images of 8 x 8 pixels.

    monarch-hpc run --local 2 examples/digits_ddp.py

Every proc trains on its share of the images; torch.distributed averages the gradients. The same script runs on a
laptop, on an allocation and inside an sbatch script.
"""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn

import monarch_hpc
from monarch_hpc import Actor, current_rank, endpoint, spmd

NUM_EPOCHS = 16
BATCH_SIZE = 64  # images in one step, over all procs
NUM_TEST = 360


class Trainer(Actor):
    """One rank: a copy of the network and a share of the images. B = images, P = pixels."""

    def __init__(self, images_BP: torch.Tensor, labels_B: torch.Tensor, num_ranks: int) -> None:
        torch.manual_seed(0)  # the same initial weights on all ranks
        torch.set_num_threads(1)
        rank = current_rank().rank
        self.images_BP, self.labels_B = images_BP[rank::num_ranks], labels_B[rank::num_ranks]
        # Shares may differ by one image, and every rank must take the same number of steps.
        self.batch_size = max(1, BATCH_SIZE // num_ranks)
        self.num_steps = len(images_BP) // num_ranks // self.batch_size
        self.shuffle = torch.Generator().manual_seed(rank)

    @endpoint
    def prepare(self) -> None:
        network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.model = nn.parallel.DistributedDataParallel(network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-3)

    @endpoint
    def train_epoch(self) -> tuple[float, int]:
        """Return the mean loss over the batches, and the number of images seen."""
        order_B = torch.randperm(len(self.images_BP), generator=self.shuffle)
        total = 0.0
        for batch in order_B[: self.num_steps * self.batch_size].split(self.batch_size):
            loss = nn.functional.cross_entropy(self.model(self.images_BP[batch]), self.labels_B[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / self.num_steps, self.num_steps * self.batch_size

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

# Imported once per host, not once per proc; torch's optimizers import the second module.
procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2}, preload=["torch", "torch._dynamo"])
spmd(procs).init("gloo")
trainers = procs.spawn("trainer", Trainer, train_BP, train_B, len(procs))
trainers.prepare.call().get()
print(f"training on {len(train_BP)} images, testing on {NUM_TEST}, {procs.extent}")
for epoch in range(1, NUM_EPOCHS + 1):
    begun_s = time.perf_counter()
    results = list(trainers.train_epoch.call().get().values())
    took_s = time.perf_counter() - begun_s
    loss = sum(loss for loss, _ in results) / len(results)
    print(f"epoch {epoch:2d}  loss {loss:.4f}  {sum(seen for _, seen in results) / took_s:8.0f} images/s", flush=True)
first = trainers.slice(**dict.fromkeys(procs.extent, 0))
accuracy = first.accuracy.call_one(test_BP, test_B).get()
print(f"test accuracy {accuracy:.1%}")
if accuracy < 0.95:
    raise SystemExit(f"expected at least 95 % on {NUM_TEST} images, got {accuracy:.1%}")
