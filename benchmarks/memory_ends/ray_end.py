"""Ray: an actor's array, fetched into the caller's; it has no one-sided writes, so a write is a call with an array."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import ray


class _Owner:
    def __init__(self, num_bytes: int) -> None:
        self._data = np.full(num_bytes, 7, np.uint8)

    def read(self) -> np.ndarray:
        return self._data

    def write(self, data: np.ndarray) -> None:
        np.copyto(self._data, data)


def main() -> None:
    """Measure between this process and an actor."""
    num_bytes, num_rounds = map(int, sys.argv[1:])
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=6 * num_bytes + 2**27)
    owner = ray.remote(_Owner).remote(num_bytes)
    here = np.zeros(num_bytes, np.uint8)
    best = {"get": float("inf"), "put": float("inf")}
    for _ in range(num_rounds):
        begun_s = time.perf_counter()
        np.copyto(here, ray.get(owner.read.remote()))
        best["get"] = min(best["get"], time.perf_counter() - begun_s)
        begun_s = time.perf_counter()
        ray.get(owner.write.remote(here))
        best["put"] = min(best["put"], time.perf_counter() - begun_s)
    assert (here == 7).all()
    print(json.dumps(best), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
