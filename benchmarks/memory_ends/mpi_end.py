"""MPI's one-sided get and put, through mpi4py, with a passive target; two ranks under mpirun."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Measure in rank 0; rank 1 only lends its memory."""
    num_bytes, num_rounds = map(int, sys.argv[1:])
    world = MPI.COMM_WORLD
    data = np.full(num_bytes if world.rank else 0, 7, np.uint8)
    window = MPI.Win.Create(data, 1, comm=world)
    if world.rank == 0:
        here = np.zeros(num_bytes, np.uint8)
        best = {"get": float("inf"), "put": float("inf")}
        for _ in range(num_rounds):
            for what, move in (("get", window.Get), ("put", window.Put)):
                begun_s = time.perf_counter()
                window.Lock(1)
                move(here, 1)
                window.Unlock(1)
                best[what] = min(best[what], time.perf_counter() - begun_s)
        assert (here == 7).all()
        print(json.dumps(best), flush=True)
    window.Free()


if __name__ == "__main__":
    main()
