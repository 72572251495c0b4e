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
from monarch_hpc.tensor.worker.collectives.waits import CollectiveWork, PeerWork, Waits

__all__ = ["GlooBackend"]

_c10d: Any = torch._C._distributed_c10d

_SHORTEST_S = 0.001
"""A wait of no time would have no limit."""

_UNWAITED = 64
"""Number of collectives under way from which on those are forgotten that have ended and that nobody has waited for."""


class GlooBackend:
    """A backend of gloo, and the collectives under way on it.

    Args:
        backend: gloo's own.
        waits: of its epoch.
        place: this rank's place in the group.
        num: number of ranks.
    """

    def __init__(self, backend: Any, waits: Waits, place: int, num: int) -> None:
        self._backend = backend
        self._waits = waits
        self._place = place
        self._num = num
        self._under_way: set[Any] = set()

    def issue(self, name: str, *arguments: Any, after: Callable[[], None] | None = None) -> CollectiveWork:
        """Begin a collective; *after* is called when it is done."""
        match name:
            case "allgather_into_tensor_coalesced":
                return self._gather_rows(*arguments, after=after)
            case "reduce_scatter":
                outputs, inputs, options = arguments
                return self._reduce_rows(
                    outputs, [torch.cat([row.reshape(-1) for row in inputs[0]])], options, after=after
                )
            case "_reduce_scatter_base":
                output, given, options = arguments
                return self._reduce_rows([output], [_flat(given)], options, after=after)
            case "reduce_scatter_tensor_coalesced":
                outputs, inputs, options = arguments
                return self._reduce_rows(outputs, list(map(_flat, inputs)), options, after=after)
            case _:
                return self._begin(name, *arguments, after=after)

    def _begin(self, name: str, *arguments: Any, after: Callable[[], None] | None) -> CollectiveWork:
        self._waits.check()
        if len(self._under_way) > _UNWAITED:
            self._under_way.difference_update([work for work in self._under_way if work.is_completed()])
        return CollectiveWork(getattr(self._backend, name)(*arguments), self._waits, self._under_way, after)

    def _gather_rows(
        self, outputs: Any, inputs: Any, options: Any, *, after: Callable[[], None] | None
    ) -> CollectiveWork:
        if len(outputs) == 1:
            return self._begin("_allgather_base", outputs[0], inputs[0], options, after=after)
        rows = [list(output.chunk(self._num)) for output in outputs]
        lists = [list(row) for row in zip(*rows, strict=True)]
        return self._begin("allgather_coalesced", lists, inputs, options, after=after)

    # gloo adds up all rows for these, and takes one; the wait of its own work has no limit.

    def _reduce_rows(
        self,
        outputs: list[torch.Tensor],
        sums: list[torch.Tensor],
        opts: Any,
        *,
        after: Callable[[], None] | None,
    ) -> CollectiveWork:
        options = _c10d.AllreduceOptions() if len(sums) == 1 else _c10d.AllreduceCoalescedOptions()
        options.reduceOp = opts.reduceOp

        def copy() -> None:
            with torch.no_grad():
                for output, total in zip(outputs, sums, strict=True):
                    output.detach().copy_(total.chunk(self._num)[self._place].view_as(output))
            if after is not None:
                after()

        return self._begin("allreduce" if len(sums) == 1 else "allreduce_coalesced", sums, options, after=copy)

    def issue_to_peer(self, name: str, *arguments: Any, after: Callable[[], None] | None = None) -> PeerWork:
        """Begin a send or a receive; *after* is called when it is waited for."""
        self._waits.check()
        return PeerWork(getattr(self._backend, name)(*arguments), self._waits, after)

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


def _flat(given: torch.Tensor) -> torch.Tensor:
    return given.detach().reshape(-1).clone()
