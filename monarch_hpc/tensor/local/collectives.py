"""Process groups between ranks in one process: tensors are exchanged in memory, in turns."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from monarch_hpc.tensor.local.turns import Turns
from monarch_hpc.tensor.worker.collectives.groups import Groups
from monarch_hpc.tensor.worker.collectives.named import NamedGroup
from monarch_hpc.tensor.worker.divergence import FailedFrame

__all__ = ["LocalGroups", "Meetings"]

_c10d: Any = torch._C._distributed_c10d
_Store: Any = dist.Store  # type: ignore[attr-defined]  # torch does not declare it

_REDUCTIONS: tuple[tuple[Any, Callable[[Any, Any], Any]], ...] = (
    (dist.ReduceOp.SUM, operator.add),
    (dist.ReduceOp.AVG, operator.add),
    (dist.ReduceOp.PRODUCT, operator.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
    (dist.ReduceOp.BAND, operator.and_),
    (dist.ReduceOp.BOR, operator.or_),
    (dist.ReduceOp.BXOR, operator.xor),
)


class Meetings:
    """What ranks exchange: all that they have put down, by place and number of the meeting.

    Args:
        turns: their threads.

    Attributes:
        entries: of the rendezvous of torch's groups.
        cause: why there are no more meetings; empty if there are.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.entries: dict[str, bytes] = {}
        self.cause = ""
        self._given: dict[tuple[Any, int], dict[int, Any]] = {}
        self._num: dict[tuple[Any, int], int] = {}
        self._mail: dict[Any, list[torch.Tensor]] = {}

    def exchange(self, ranks: tuple[int, ...], place: int, value: Any) -> list[Any]:
        """Put down a value, and wait for those of all *ranks*."""
        number = self._num[ranks, place] = self._num.get((ranks, place), 0) + 1
        given = self._given.setdefault((ranks, number), {})
        given[place] = value
        self._wait(lambda: len(given) == len(ranks), f"a collective of ranks {ranks}")
        self._given.pop((ranks, number), None)
        return [given[one] for one in range(len(ranks))]

    def send(self, key: Any, value: torch.Tensor) -> None:
        """Put down a value for one rank."""
        self._mail.setdefault(key, []).append(value)

    def receive(self, key: Any) -> torch.Tensor:
        """Wait for a value."""
        self._wait(lambda: bool(self._mail.get(key)), "a copy from another rank")
        return self._mail[key].pop(0)

    def entry(self, key: str) -> bytes:
        """Wait for an entry."""
        self._wait(lambda: key in self.entries, "a rendezvous")
        return self.entries[key]

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        if not ready():
            self.turns.wait(lambda: bool(ready() or self.cause), what)
        if self.cause:
            raise RuntimeError(self.cause)


class _LocalStore(_Store):  # type: ignore[misc]  # torch does not declare it
    """A rendezvous between ranks of one process."""

    def __init__(self, meetings: Meetings, prefix: str) -> None:
        super().__init__()
        self._meetings = meetings
        self._prefix = prefix

    def set(self, key: str, value: bytes | str) -> None:
        self._meetings.entries[self._prefix + key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._meetings.entry(self._prefix + key)

    def add(self, key: str, amount: int) -> int:
        number = int(self._meetings.entries.get(self._prefix + key, b"0")) + amount
        self._meetings.entries[self._prefix + key] = str(number).encode()
        return number

    def check(self, keys: list[str]) -> bool:
        return all(self._prefix + key in self._meetings.entries for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        return False


class LocalGroup(NamedGroup):
    """A process group of one rank.

    Args:
        meetings: what ranks exchange.
        ranks: the ranks of the group.
        place: this one's place among them.
    """

    def __init__(self, meetings: Meetings, ranks: tuple[int, ...], place: int) -> None:
        super().__init__(place, len(ranks))
        self._meetings = meetings
        self._ranks = ranks
        self._place = place

    def again(self) -> LocalGroup:
        """See base class."""
        return LocalGroup(self._meetings, self._ranks, self._place)

    def getBackendName(self) -> str:  # noqa: N802 torch's
        """Its name, for torch."""
        return "local"

    def _exchange(self, value: Any) -> list[Any]:
        return self._meetings.exchange(self._ranks, self._place, value)

    def _all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._exchange(tensor.detach().clone())

    # ---- what torch calls ----

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See torch; so are the methods below."""
        tensor = tensors[0] if isinstance(tensors, list) else tensors
        tensor.detach().copy_(_reduced(self._all(tensor), _op_of(opts)))
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            self.allreduce([tensor], opts)
        return _done(tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        found = self._all(tensors[0])
        if self._place == opts.rootRank:
            tensors[0].detach().copy_(_reduced(found, _op_of(opts)))
        return _done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        for tensor in tensors:
            tensor.detach().copy_(self._all(tensor)[opts.rootRank])
        return _done(tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for out, one in zip(outputs[0], self._all(inputs[0]), strict=True):
            out.detach().copy_(one)
        return _done(outputs)

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        output.detach().view(-1).copy_(torch.cat([one.reshape(-1) for one in self._all(given)]))
        return _done(output)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, given in zip(outputs, inputs, strict=True):
            self._allgather_base(output, given)
        return _done(outputs)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        rows = self._exchange([one.detach().clone() for one in inputs[0]])
        outputs[0].detach().copy_(_reduced([row[self._place] for row in rows], _op_of(opts)))
        return _done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Any:
        found = _reduced([one.reshape(-1) for one in self._all(given)], _op_of(opts))
        output.detach().view(-1).copy_(found.chunk(len(self._ranks))[self._place])
        return _done(output)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, given in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, given, opts)
        return _done(outputs)

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, out_sizes: list[int], in_sizes: list[int], opts: Any = None
    ) -> Any:
        num = len(self._ranks)
        sizes = list(in_sizes) or [len(given) // num] * num
        rows = self._exchange([one.clone() for one in torch.split(given.detach(), sizes)])
        parts = [row[self._place] for row in rows]
        output.detach().copy_(torch.cat(parts).view_as(output))
        return _done(output)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        rows = self._exchange([one.detach().clone() for one in inputs])
        for output, row in zip(outputs, rows, strict=True):
            output.detach().copy_(row[self._place])
        return _done(outputs)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        rows = self._exchange([one.detach().clone() for one in inputs[0]] if inputs else [])
        outputs[0].detach().copy_(rows[opts.rootRank][self._place])
        return _done(outputs)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        found = self._all(inputs[0])
        for out, one in zip(outputs[0] if outputs else (), found, strict=False):
            out.detach().copy_(one)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        self._exchange(None)
        return _done(None)

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Any:
        self._meetings.send((self._ranks, self._place, target, tag), tensors[0].detach().clone())
        return _done(tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        found = self._meetings.receive((self._ranks, source, self._place, tag))
        tensors[0].detach().copy_(found)
        return _done(tensors)


def _op_of(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _reduced(values: Sequence[torch.Tensor], op: Any) -> torch.Tensor:
    combine = next(combine for known, combine in _REDUCTIONS if op == known)
    found: torch.Tensor = functools.reduce(combine, values)
    return found / len(values) if op == dist.ReduceOp.AVG else found


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)


class LocalGroups(Groups):
    """The process groups of one rank of a process.

    Args:
        rank: the rank.
        meetings: what ranks exchange.
        timeout_s: longest wait for the other ranks of a collective.
    """

    def __init__(self, rank: int, meetings: Meetings, timeout_s: float) -> None:
        super().__init__(rank, {}, None, {}, timeout_s)  # type: ignore[arg-type]  # it has no control actors
        self._meetings = meetings
        self.offset = rank

    def abort(self, cause: str, _epoch: int | None = None) -> bool:
        """End the collectives under way and all to come, of the only epoch; from any thread."""
        self.cause = self._meetings.cause = cause
        self._meetings.turns.wake()
        return True

    def tell_failed(self, ranks: tuple[int, ...], frame: FailedFrame) -> None:
        """Nothing: no rank is told by messages, and one that waits for another one waits for *timeout_s* at most."""

    def store(self, rank: int, prefix: str) -> Any:
        """A rendezvous whose keys begin with *prefix*."""
        return _LocalStore(self._meetings, prefix)

    def _join(self, ranks: tuple[int, ...]) -> LocalGroup:
        return LocalGroup(self._meetings, ranks, ranks.index(self._rank))
