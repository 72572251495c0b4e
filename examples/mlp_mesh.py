"""One training loop for a whole mesh: the handwritten digits of scikit-learn, 1,797 real images of 8 x 8 pixels.

    monarch-hpc run --local 2 examples/mlp_mesh.py

The program is ordinary torch code. It runs on all procs at once, each with a share of the images; only the line that
averages the gradients shows that there are several.
"""

import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import monarch_hpc
from monarch_hpc.tensor import inspect, random, remote

NUM_EPOCHS = 12
BATCH_SIZE = 96  # images in one step, over all procs
NUM_TEST = 360


def shapes(images_BP: torch.Tensor, labels_B: torch.Tensor, rank: torch.Tensor, num: int) -> Any:
    """The shapes of what `share` returns."""
    return images_BP[: len(images_BP) // num], labels_B[: len(labels_B) // num]


@remote(propagate=shapes)
def share(images_BP: torch.Tensor, labels_B: torch.Tensor, rank: torch.Tensor, num: int) -> Any:
    """This rank's images and labels. B = images, P = pixels."""
    each = len(images_BP) // num
    own = slice(int(rank) * each, (int(rank) + 1) * each)
    return images_BP[own], labels_B[own]


digits = load_digits()
order_B = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
images_BP = torch.tensor(digits.data, dtype=torch.float32)[order_B] / 16
labels_B = torch.tensor(digits.target)[order_B]
test_BP, train_BP = images_BP[:NUM_TEST], images_BP[NUM_TEST:]
test_B, train_B = labels_B[:NUM_TEST], labels_B[NUM_TEST:]

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}, preload=["torch", "torch._dynamo"]).flatten("dp")
begun_s = time.perf_counter()
with procs.activate():
    random.manual_seed(1)  # the same initial weights on all ranks
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # The whole set is sent once; each rank keeps its share.
    own_BP, own_B = share(torch.as_tensor(train_BP), torch.as_tensor(train_B), procs.rank("dp"), len(procs))
    each = BATCH_SIZE // len(procs)
    for epoch in range(1, NUM_EPOCHS + 1):
        batches = torch.randperm(len(own_B)).split(each)
        for batch in batches[:-1]:
            loss = nn.functional.cross_entropy(model(own_BP[batch]), own_B[batch])
            optimizer.zero_grad()
            loss.backward()
            for gradient in (parameter.grad for parameter in model.parameters()):
                gradient.reduce_("dp", "avg")  # type: ignore[union-attr]  # of mesh tensors
            optimizer.step()
        if epoch % 4 == 0:
            print(f"epoch {epoch:2d}  loss {inspect(loss):.4f}", flush=True)
    with torch.no_grad():
        right = (model(torch.as_tensor(test_BP)).argmax(1) == torch.as_tensor(test_B)).float().mean()
    accuracy = float(inspect(right))
print(f"test accuracy {accuracy:.1%} with {procs.extent}, {time.perf_counter() - begun_s:.1f} s")
if accuracy < 0.97:
    raise SystemExit(f"expected at least 97 % on {NUM_TEST} images, got {accuracy:.1%}")
