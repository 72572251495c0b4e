"""Our own buffers over UCX, without cross-memory attach: what the same memory costs with UCX's get and put."""

from __future__ import annotations

import json
import os
import sys

import monarch_hpc
from benchmarks.rdma import Owner, measure_ours, measure_pieces

__all__ = ["measure_over"]


def measure_over(fabric: str, order: str, **settings: str) -> None:
    """Measure between this process and a proc whose `fabric.order` is *order*; the path must begin with *fabric*.

    Args:
        settings: values of other keys of the configuration, by the name of their variable.
    """
    num_bytes, num_rounds = map(int, sys.argv[1:])
    os.environ |= {"MONARCH_HPC_FABRIC__ORDER": order, **settings}
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs(per_host={"p": 1}) as procs:
        owner = procs.spawn("owner", Owner)
        found, path = measure_ours(owner, num_bytes, num_rounds)
        found["pieces"] = measure_pieces(owner, num_rounds)[1]
    assert path.startswith(fabric), path
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    measure_over("ucx", "[ucx, tcp]")
