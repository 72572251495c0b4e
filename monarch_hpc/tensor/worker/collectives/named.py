"""Process groups in Python that torch can give a name."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from monarch_hpc.tensor.worker.collectives.staging import device_of

__all__ = ["NamedGroup", "options_with"]

_Group: Any = dist.ProcessGroup


class NamedGroup(_Group):  # type: ignore[misc]  # torch does not declare it
    """A process group of one rank. torch keeps names with a backend in C++, of which this one has none.

    Args:
        place: this rank's place in the group.
        num: number of ranks.
    """

    def __init__(self, place: int, num: int) -> None:
        super().__init__(place, num)
        self._num = num
        self._name = self._desc = ""

    def again(self) -> NamedGroup:
        """Another group of the same ranks, on the same connections, which torch can give another name."""
        raise NotImplementedError

    def highest(self, numbers: torch.Tensor) -> Any:
        """Begin to replace numbers in host memory by the highest ones of all ranks."""
        return self.allreduce([numbers], options_with(dist.ReduceOp.MAX))

    def place_of(self, kind: str, name: str, dtype: torch.dtype, reduction: Any) -> torch.device:
        """Where the ranks do a collective: on their devices, or all of them in host memory.

        Args:
            kind: type of the device that the tensors are on.
            name: of the collective.
            dtype: type of the elements.
            reduction: torch's; None if it reduces nothing.
        """
        return device_of(kind)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: self._desc)

    def getSize(self) -> int:  # noqa: N802 torch's
        """The number of ranks, for torch."""
        return self._num

    # ---- torch's later names of the same ----

    def all_gather_single(self, *arguments: Any) -> Any:
        """See torch; so are the methods below."""
        return self._allgather_base(*arguments)

    def all_gather_single_coalesced(self, *arguments: Any) -> Any:
        return self.allgather_into_tensor_coalesced(*arguments)

    def reduce_scatter_single(self, *arguments: Any) -> Any:
        return self._reduce_scatter_base(*arguments)

    def reduce_scatter_single_coalesced(self, *arguments: Any) -> Any:
        return self.reduce_scatter_tensor_coalesced(*arguments)

    def all_to_all_single(self, *arguments: Any) -> Any:
        return self.alltoall_base(*arguments)


def options_with(op: Any) -> Any:
    """Options of an allreduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options
