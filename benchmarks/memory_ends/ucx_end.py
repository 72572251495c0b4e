"""Our own buffers over UCX, without cross-memory attach: what the same memory costs with UCX's get and put."""

from __future__ import annotations

import json
import os
import sys

import monarch_hpc
from benchmarks.rdma import Owner, measure_ours


def main() -> None:
    """Measure between this process and a proc."""
    num_bytes, num_rounds = map(int, sys.argv[1:])
    os.environ["MONARCH_HPC_FABRIC__ORDER"] = "[ucx, tcp]"
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs(per_host={"p": 1}) as procs:
        found, path = measure_ours(procs.spawn("owner", Owner), num_bytes, num_rounds)
    assert path.startswith("ucx"), path
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
