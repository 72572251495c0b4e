"""Process groups over gloo whose waits an abort ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import torch

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.tensor.worker.collectives.named import NamedGroup
from monarch_hpc.tensor.worker.collectives.waits import CollectiveWork, PeerWork, Waits

__all__ = ["BACKEND", "GlooBackend", "GlooGroup"]

_c10d: Any = torch._C._distributed_c10d

BACKEND = "monarch_gloo"
"""Its name, for torch, which would look for a backend in C++ if it were gloo's."""

_SHORTEST_S = 0.001
"""A wait of no time would have no limit."""

_UNWAITED = 64
"""Number of collectives under way from which on those are forgotten that have ended and that nobody has waited for."""


class GlooBackend:
    """A backend of gloo, and the collectives under way on it.

    Args:
        backend: gloo's own.
        waits: of its epoch.
    """

    def __init__(self, backend: Any, waits: Waits) -> None:
        self._backend = backend
        self._waits = waits
        self._under_way: set[Any] = set()

    def issue(self, name: str, *arguments: Any, after: Callable[[], None] | None = None) -> CollectiveWork:
        """Begin a collective; *after* is called when it is done."""
        self._waits.check()
        if len(self._under_way) > _UNWAITED:
            self._under_way.difference_update([work for work in self._under_way if work.is_completed()])
        return CollectiveWork(getattr(self._backend, name)(*arguments), self._waits, self._under_way, after)

    def issue_to_peer(self, name: str, *arguments: Any) -> PeerWork:
        """Begin a send or a receive."""
        self._waits.check()
        return PeerWork(getattr(self._backend, name)(*arguments), self._waits)

    def settle(self, until: float) -> None:
        """Wait for the collectives under way, until a time of the monotonic clock: what still waits then is stuck."""
        for work in list(self._under_way):
            left = timedelta(seconds=max(_SHORTEST_S, until - monotonic()))
            with contextlib.suppress(Exception):  # it has failed, or is one that nothing wakes
                work.wait(left)

    def retire(self) -> None:
        """Give up the backend. Its destructor waits for its collectives: on another thread, if they have not ended."""
        waiting = [work for work in self._under_way if not work.is_completed()]
        backend, self._backend = self._backend, None
        self._under_way.clear()
        if waiting:
            Thread(partial(_destroy, [backend], waiting))


def _destroy(backend: list[Any], waiting: list[Any]) -> None:
    """Destroy a backend once its collectives have ended, which they do at gloo's limit at the latest."""
    for work in waiting:
        with contextlib.suppress(Exception):  # it has failed, as it should
            work.wait()
    waiting.clear()
    backend.clear()


class GlooGroup(NamedGroup):
    """A process group of one rank.

    Args:
        backend: with the connections to the other ranks.
        place: this rank's place in the group.
        num: number of ranks.
    """

    def __init__(self, backend: GlooBackend, place: int, num: int) -> None:
        super().__init__(place, num)
        self._backend = backend
        self._issue = backend.issue
        self._place = place

    def again(self) -> GlooGroup:
        """See base class."""
        return GlooGroup(self._backend, self._place, self._num)

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
        if len(outputs) == 1:
            return self._allgather_base(outputs[0], inputs[0], opts)
        rows = [list(output.chunk(self._num)) for output in outputs]
        return self.allgather_coalesced([list(row) for row in zip(*rows, strict=True)], inputs, opts)

    # gloo adds up all rows for these, and takes one; the wait of its own work has no limit.

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        return self._reduce_rows(outputs, [torch.cat([row.reshape(-1) for row in inputs[0]])], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Any:
        return self._reduce_rows([output], [given.detach().reshape(-1).clone()], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._reduce_rows(outputs, [given.detach().reshape(-1).clone() for given in inputs], opts)

    def _reduce_rows(self, outputs: list[torch.Tensor], sums: list[torch.Tensor], opts: Any) -> Any:
        options = _c10d.AllreduceOptions() if len(sums) == 1 else _c10d.AllreduceCoalescedOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp

        def copy() -> None:
            with torch.no_grad():
                for output, total in zip(outputs, sums, strict=True):
                    output.detach().copy_(total.chunk(self._num)[self._place].view_as(output))

        name = "allreduce" if len(sums) == 1 else "allreduce_coalesced"
        return self._issue(name, sums, options, after=copy)

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
        return self._backend.issue_to_peer("send", tensors, target, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self._backend.issue_to_peer("recv", tensors, source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        return self._backend.issue_to_peer("recv_anysource", tensors, tag)


def _options_of(given: Any, kind: Any) -> Any:
    return kind() if given is None else given
