"""Process groups as torch calls them; collectives go where their tensors are, see `routes`."""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.tensor.worker.collectives.named import NamedGroup, options_with
from monarch_hpc.tensor.worker.collectives.routes import CollectiveRoutes

__all__ = ["BACKEND", "RankGroup"]

_c10d: Any = torch._C._distributed_c10d

BACKEND = "monarch_gloo"
"""The name of its backend, for torch, which would look for a backend in C++ if it were gloo's."""


class RankGroup(NamedGroup):
    """A process group of one rank.

    Args:
        routes: to the other ranks.
        place: this rank's place in the group.
        num: number of ranks.
    """

    def __init__(self, routes: CollectiveRoutes, place: int, num: int) -> None:
        super().__init__(place, num)
        self._routes = routes
        self._issue = routes.issue
        self._place = place

    def again(self) -> RankGroup:
        """See base class."""
        return RankGroup(self._routes, self._place, self._num)

    def highest(self, numbers: torch.Tensor) -> Any:
        """See base class: by gloo, whatever libraries there are."""
        return self._routes.host.issue("allreduce", [numbers], options_with(_c10d.ReduceOp.MAX))

    def place_of(self, kind: str, name: str, dtype: torch.dtype, reduction: Any) -> torch.device:
        """See base class."""
        return self._routes.place_of(kind, name, {dtype}, reduction)

    def getBackendName(self) -> str:  # noqa: N802 torch's
        """See `BACKEND`."""
        return BACKEND

    # ---- what torch calls ----

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See torch; so are the methods below."""
        listed = tensors if isinstance(tensors, list) else [tensors]
        return self._issue("allreduce", listed, _options_of(opts, _c10d.AllreduceOptions))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._issue("allreduce_coalesced", tensors, _options_of(opts, _c10d.AllreduceCoalescedOptions))

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._issue("reduce", tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._issue("broadcast", tensors, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self._issue("allgather", outputs, inputs, _options_of(opts, _c10d.AllgatherOptions))

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        return self._issue("_allgather_base", output, given, _options_of(opts, _c10d.AllgatherOptions))

    def allgather_coalesced(self, outputs: Any, inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self._issue("allgather_coalesced", outputs, inputs, _options_of(opts, _c10d.AllgatherOptions))

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._issue(
            "allgather_into_tensor_coalesced", outputs, inputs, _options_of(opts, _c10d.AllgatherOptions)
        )

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        return self._issue("reduce_scatter", outputs, inputs, _options_of(opts, _c10d.ReduceScatterOptions))

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        return self._issue("_reduce_scatter_base", output, given, _options_of(opts, _c10d.ReduceScatterOptions))

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._issue(
            "reduce_scatter_tensor_coalesced", outputs, inputs, _options_of(opts, _c10d.ReduceScatterOptions)
        )

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, out_sizes: list[int], in_sizes: list[int], opts: Any = None
    ) -> Any:
        options = _options_of(opts, _c10d.AllToAllOptions)
        return self._issue("alltoall_base", output, given, out_sizes, in_sizes, options)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self._issue("alltoall", outputs, inputs, _options_of(opts, _c10d.AllToAllOptions))

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        return self._issue("scatter", outputs, inputs, opts)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        return self._issue("gather", outputs, inputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        return self._issue("barrier", _options_of(opts, _c10d.BarrierOptions))

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Any:
        return self._routes.issue_to_peer("send", tensors, target, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self._routes.issue_to_peer("recv", tensors, source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        return self._routes.issue_to_peer("recv_anysource", tensors, tag)


def _options_of(given: Any, kind: Any) -> Any:
    return kind() if given is None else given
