"""PyTorch Monarch's RDMABuffer, from its wheel; over tcp where there is no RDMA device."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer


class _Owner(Actor):
    @endpoint
    def share(self, num_bytes: int) -> Any:
        self._data = bytearray(b"\7") * num_bytes
        return RDMABuffer(memoryview(self._data))


class _User(Actor):
    @endpoint
    async def measure(self, buffer: Any, num_bytes: int, num_rounds: int) -> dict[str, float]:
        here = bytearray(num_bytes)
        best = {"get": float("inf"), "put": float("inf")}
        for _ in range(num_rounds):
            begun_s = time.perf_counter()
            await buffer.read_into(memoryview(here), timeout=100)
            best["get"] = min(best["get"], time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
            await buffer.write_from(memoryview(here), timeout=100)
            best["put"] = min(best["put"], time.perf_counter() - begun_s)
        assert here.count(7) == num_bytes
        return best


def main() -> None:
    """Measure between two procs of this host, as Monarch's buffers want actors on both sides."""
    num_bytes, num_rounds = map(int, sys.argv[1:])
    host = this_host()
    owner = host.spawn_procs(per_host={"p": 1}).spawn("owner", _Owner)
    user = host.spawn_procs(per_host={"p": 1}).spawn("user", _User)
    buffer = owner.share.call_one(num_bytes).get()
    print(json.dumps(user.measure.call_one(buffer, num_bytes, num_rounds).get()), flush=True)


if __name__ == "__main__":
    main()
