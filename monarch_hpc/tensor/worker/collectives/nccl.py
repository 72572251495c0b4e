"""Process groups of NCCL: all of this package that calls it. It was written without a GPU, and has never run on one."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from monarch_hpc.core.machine.procfs import read_boot_id

__all__ = ["Nccl", "group_with"]

_Group: Any = dist.ProcessGroup

_log = logging.getLogger(__name__)

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LEAVES_PROCESSES = frozenset({"0", "2"})
"""Its values with which torch's watchdog ends no process; torch has no other way to say so."""


class Nccl:
    """The collectives of NCCL; see `devices.DeviceLibrary`.

    Sends and receives are not among them: NCCL makes a communicator for each pair of ranks at the first one, for which
    both must come at the same time.
    """

    name = "NCCL"
    collectives = frozenset(
        {
            "allreduce",
            "allreduce_coalesced",
            "reduce",
            "broadcast",
            "allgather",
            "_allgather_base",
            "allgather_into_tensor_coalesced",
            "reduce_scatter",
            "_reduce_scatter_base",
            "reduce_scatter_tensor_coalesced",
            "alltoall_base",
            "alltoall",
            "scatter",
            "gather",
        }
    )
    reductions = frozenset(
        {
            *(dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM),
            *(dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX),
        }
    )
    dtypes = frozenset(
        {
            *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
            *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
        }
    )

    def identity(self) -> str:
        """Where this rank's GPU is.

        NCCL, up to its version 2.29, refuses two ranks at one PCI address of a machine, also those on parts of one GPU,
        each of which has a UUID.
        """
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            return ""
        found: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        return f"{read_boot_id()} {found.pci_domain_id:x}:{found.pci_bus_id:x}:{found.pci_device_id:x}"

    def connect(self, store: Any, place: int, num: int, timeout: timedelta, device: torch.device) -> Any:
        """See `devices.DeviceLibrary`. The communicator is made here: made later, nothing would end the wait for it."""
        if os.environ.get(_HANDLING) not in _LEAVES_PROCESSES:
            _log.warning(
                "torch will end this process if a collective of NCCL fails or another rank dies: start procs with "
                "env={'%s': '2', ...} (docs/tensors.md, On GPUs)",
                _HANDLING,
            )
        nccl: Any = dist.ProcessGroupNCCL  # absent where torch was built without it
        options = nccl.Options()
        options._timeout = timeout
        backend = nccl(store, place, num, options)
        backend.eager_connect_single_device(device)
        return group_with(backend, device.type, "NCCL", store, place, num)

    def failure(self, group: Any) -> str:
        """See `devices.DeviceLibrary`. torch's watchdog notes it before it aborts; older versions do not tell."""
        backend = group._get_backend(torch.device("cuda"))
        error: Any = getattr(backend, "get_error", lambda: None)()
        return "" if error is None or not error.value else f"torch's watchdog has found a {error.name}"


def group_with(backend: Any, kind: str, name: str, store: Any, place: int, num: int) -> Any:
    """torch's process group with one backend, which has more methods than the backend.

    Args:
        backend: torch's.
        kind: type of the device of its tensors.
        name: of the backend's type.
        store: the rendezvous.
        place: this rank's place in the group.
        num: number of ranks.
    """
    group: Any = _Group(store, place, num)
    group._register_backend(torch.device(kind), getattr(_Group.BackendType, name), backend)
    return group
