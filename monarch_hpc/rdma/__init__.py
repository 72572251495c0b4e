"""One-sided memory: buffers whose references travel in messages, while their bytes move without code of their owner.

The names and meanings of `monarch.rdma`; see docs/rdma.md for what is added.
"""

from __future__ import annotations

from monarch_hpc.rdma.action import RDMAAction
from monarch_hpc.rdma.backend import (
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from monarch_hpc.rdma.buffer import RDMABuffer
from monarch_hpc.rdma.shard import Shard
from monarch_hpc.rdma.shared import empty
from monarch_hpc.rdma.shared_array import SharedArray, shared_array
from monarch_hpc.rdma.spread.broadcast import broadcast, gather
from monarch_hpc.rdma.state import RDMAState

__all__ = [
    "RDMAAction",
    "RDMABuffer",
    "RDMAReadTransferWarning",
    "RDMAState",
    "RDMATcpFallbackWarning",
    "RDMAWriteTransferWarning",
    "Shard",
    "SharedArray",
    "broadcast",
    "empty",
    "gather",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
    "shared_array",
]
