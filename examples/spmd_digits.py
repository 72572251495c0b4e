"""A script for torchrun, and the program that runs it on a mesh: training on scikit-learn's 1,797 handwritten digits.

    monarch-hpc run --local 2 examples/spmd_digits.py
    torchrun --nproc-per-node 2 examples/spmd_digits.py        # the same `train`, on one machine

`train` learns its rank only from the environment, as under torchrun, and does not use actors. examples/digits_ddp.py
trains the same network in actors, which keep it between two calls.
"""

from __future__ import annotations

import argparse
import os
import sys

NUM_TEST = 360


def train(num_epochs: int) -> None:
    """One rank. B = images, P = pixels."""
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import nn

    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same initial weights and the same order on all ranks
    digits = load_digits()
    order_B = torch.randperm(len(digits.data))
    images_BP = torch.tensor(digits.data, dtype=torch.float32)[order_B] / 16
    labels_B = torch.tensor(digits.target)[order_B]
    test_BP, test_B = images_BP[:NUM_TEST], labels_B[:NUM_TEST]
    shares = torch.arange(NUM_TEST, len(images_BP)).split((len(images_BP) - NUM_TEST) // num_ranks)
    own_BP, own_B = images_BP[shares[rank]], labels_B[shares[rank]]

    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for epoch in range(num_epochs):
        for batch in torch.randperm(len(own_BP)).split(max(1, 64 // num_ranks)):
            loss = nn.functional.cross_entropy(model(own_BP[batch]), own_B[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1:2d}  loss {loss.item():.4f}")

    with torch.no_grad():
        right = (network(test_BP).argmax(1) == test_B).float().mean()
    dist.all_reduce(right)  # the mean over ranks, whose networks must be the same
    accuracy = right.item() / num_ranks
    dist.destroy_process_group()
    if rank == 0:
        print(f"test accuracy {accuracy:.1%}")
    if accuracy < 0.95:
        sys.exit(f"expected at least 95 % on {NUM_TEST} images, got {accuracy:.1%}")


def control() -> None:
    """Run this script on every proc. It could be run again on the same mesh, also after an edit."""
    import monarch_hpc

    procs = monarch_hpc.hosts().spawn_procs()
    # If a rank fails, the others are ended, and its exception is raised here, or ScriptFailed with its exit status.
    statuses = monarch_hpc.run_script(procs, __file__, ["--epochs", "12"]).get()
    print(f"statuses {list(statuses.values())}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=12)
        train(parser.parse_args().epochs)
    else:
        control()
