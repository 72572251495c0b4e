"""The carrier of the bytes of RDMA buffers here, by the names that Monarch's programs ask for."""

from __future__ import annotations

import warnings

from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.transport.ucx.machine import read_machine

__all__ = [
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMAWriteTransferWarning",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
]


class RDMAReadTransferWarning(UserWarning):
    """For programs that filter Monarch's warning of this name; never given."""


class RDMAWriteTransferWarning(UserWarning):
    """For programs that filter Monarch's warning of this name; never given."""


class RDMATcpFallbackWarning(UserWarning):
    """For programs that filter Monarch's warning of this name; never given: `RDMABuffer.path` says what carries it."""


def is_ibverbs_available() -> bool:
    """Whether this machine has an InfiniBand or RoCE device."""
    return bool(read_machine().rdma)


def is_rdma_available() -> bool:
    """Like `is_ibverbs_available`; deprecated, as in Monarch: buffers work without such devices, too."""
    warnings.warn("use is_ibverbs_available() or get_rdma_backend()", DeprecationWarning, stacklevel=2)
    return is_ibverbs_available()


def get_rdma_backend() -> str:
    """What moves the bytes of buffers where both sides have it: ``ucx``; or ``tcp`` in a process without UCX."""
    return "tcp" if current_runtime().node.fabric is None else "ucx"
