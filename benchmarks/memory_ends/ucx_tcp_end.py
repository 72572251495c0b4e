"""Our own buffers over UCX and its tcp: what the same memory costs between hosts of a trusted network without RDMA."""

from __future__ import annotations

from benchmarks.memory_ends.ucx_end import measure_over

if __name__ == "__main__":
    measure_over(
        "ucx",
        "[ucx, tcp]",
        MONARCH_HPC_FABRIC__TRUSTED="true",
        MONARCH_HPC_UCX__TRANSPORTS="tcp,self",
        MONARCH_HPC_UCX__DEVICES="lo",
    )
