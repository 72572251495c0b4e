"""Our own buffers over sealed sockets alone: what the same memory costs between hosts without RDMA."""

from __future__ import annotations

from benchmarks.memory_ends.ucx_end import measure_over

if __name__ == "__main__":
    measure_over("tcp", "[tcp]")
