"""Process groups of ranks: each collective that torch calls on them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from tests.system.tensor.file_groups import BOTH, FileGroups, GlooLibrary

_LIMIT_S = 60.0

_untyped: Any = dist  # does not declare its options


def _of_root(kind: str) -> Any:
    options = getattr(_untyped, kind)()
    options.rootRank = 1
    return options


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


Ran = tuple[Any, list[torch.Tensor]]
"""A work, and where its result comes."""


def _allreduce(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    return group.allreduce([x]), [x]


def _allreduce_coalesced(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    return group.allreduce_coalesced([x]), [x]


def _reduce(group: Any, x: torch.Tensor, rank: int) -> Ran:
    return group.reduce([x], _of_root("ReduceOptions")), [x] if rank == 1 else []


def _broadcast(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    return group.broadcast([x], _of_root("BroadcastOptions")), [x]


def _allgather(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = [_zeros(2), _zeros(2)]
    return group.allgather([found], [x]), found


def _all_gather_single(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = _zeros(4)
    return group.all_gather_single(found, x), [found]


def _all_gather_single_coalesced(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = [_zeros(4), _zeros(4)]
    return group.all_gather_single_coalesced(found, [x, x + 10]), found


def _reduce_scatter(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = _zeros(1)
    return group.reduce_scatter([found], [list(x.chunk(2))], _untyped.ReduceScatterOptions()), [found]


def _reduce_scatter_single(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = _zeros(1)
    return group.reduce_scatter_single(found, x, _untyped.ReduceScatterOptions()), [found]


def _reduce_scatter_single_coalesced(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = [_zeros(1), _zeros(1)]
    return group.reduce_scatter_single_coalesced(found, [x, x + 10]), found


def _all_to_all_single(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = _zeros(2)
    return group.all_to_all_single(found, x, [], []), [found]


def _alltoall(group: Any, x: torch.Tensor, _rank: int) -> Ran:
    found = [_zeros(1), _zeros(1)]
    return group.alltoall(found, list(x.chunk(2))), found


def _scatter(group: Any, x: torch.Tensor, rank: int) -> Ran:
    found = _zeros(1)
    return group.scatter([found], [list(x.chunk(2))] if rank == 1 else [], _of_root("ScatterOptions")), [found]


def _gather(group: Any, x: torch.Tensor, rank: int) -> Ran:
    found = [_zeros(2), _zeros(2)] if rank == 1 else []
    return group.gather([found] if found else [], [x], _of_root("GatherOptions")), found


def _copy(group: Any, x: torch.Tensor, rank: int) -> Ran:
    return (group.send([x], 1, 0) if rank == 0 else group.recv([x], 0, 0)), [x]


def _copy_from_any(group: Any, x: torch.Tensor, rank: int) -> Ran:
    return (group.send([x], 1, 0) if rank == 0 else group.recv_anysource([x], 0)), [x]


_SUMS = [[4.0, 6.0]]
_ROWS = [[1.0, 2.0], [3.0, 4.0]]
_EXPECTED: dict[Callable[..., Ran], tuple[list[list[float]], list[list[float]]]] = {
    _allreduce: (_SUMS, _SUMS),
    _allreduce_coalesced: (_SUMS, _SUMS),
    _reduce: ([], _SUMS),
    _broadcast: ([[3.0, 4.0]], [[3.0, 4.0]]),
    _allgather: (_ROWS, _ROWS),
    _all_gather_single: ([[1.0, 2.0, 3.0, 4.0]],) * 2,
    _all_gather_single_coalesced: ([[1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 14.0]],) * 2,
    _reduce_scatter: ([[4.0]], [[6.0]]),
    _reduce_scatter_single: ([[4.0]], [[6.0]]),
    _reduce_scatter_single_coalesced: ([[4.0], [24.0]], [[6.0], [26.0]]),
    _all_to_all_single: ([[1.0, 3.0]], [[2.0, 4.0]]),
    _alltoall: ([[1.0], [3.0]], [[2.0], [4.0]]),
    _scatter: ([[3.0]], [[4.0]]),
    _gather: ([], _ROWS),
    _copy: ([[1.0, 2.0]], [[1.0, 2.0]]),
    _copy_from_any: ([[1.0, 2.0]], [[1.0, 2.0]]),
}


_LIBRARIES: dict[str, Callable[[int], GlooLibrary | None]] = {
    "gloo": lambda _: None,
    "a library": lambda rank: GlooLibrary(f"device {rank}"),
    "by way of host memory": lambda _: GlooLibrary("the same device"),
}


@pytest.mark.parametrize("way", _LIBRARIES)
def test_each_collective_has_its_result(way: str, tmp_path: Path) -> None:
    libraries = [_LIBRARIES[way](rank) for rank in BOTH]
    both = [FileGroups(rank, str(tmp_path / "store"), _LIMIT_S, libraries[rank]) for rank in BOTH]

    def run(rank: int) -> list[list[list[float]]]:
        group = both[rank].of(BOTH).again()
        results = []
        for collective in _EXPECTED:
            work, found = collective(group, torch.tensor([1.0, 2.0]) + 2 * rank, rank)
            assert work.wait() and work.wait()
            results.append([one.tolist() for one in found])
        group.barrier().wait(timedelta(seconds=_LIMIT_S))
        return results

    with ThreadPoolExecutor() as pool:
        for rank, results in enumerate(pool.map(run, BOTH)):
            assert results == [expected[rank] for expected in _EXPECTED.values()]
    assert [len(one.made) for one in libraries if one is not None] == {"a library": [1, 1], "gloo": []}.get(way, [0, 0])
    for groups in both:
        groups.close("the test is over")


@pytest.mark.parametrize(("num", "num_elements", "most"), [(300, 4, 256), (24, 2 << 20, 10)])
def test_what_was_sent_and_received_is_not_kept_for_ever(
    num: int, num_elements: int, most: int, tmp_path: Path
) -> None:
    both = [FileGroups(rank, str(tmp_path / "store"), _LIMIT_S) for rank in BOTH]
    kept: WeakSet[torch.Tensor] = WeakSet()

    def send() -> None:
        for tag in range(num):
            value = torch.full((num_elements,), float(tag))
            kept.add(value)
            both[0].send(BOTH, [1], tag, value, 0)

    with ThreadPoolExecutor() as pool:
        sending = pool.submit(send)
        for tag in range(num):
            found, root = both[1].receive(BOTH, 0, tag, torch.empty(num_elements))
            assert (found[-1].item(), root) == (tag, 0)
        sending.result(_LIMIT_S)
    assert len(kept) <= most
    both[0].flush_sends()
    assert not kept
    for groups in both:
        groups.close("the test is over")


def test_a_future_of_a_collective_has_its_result_or_the_cause_of_an_abort(tmp_path: Path) -> None:
    both = [FileGroups(rank, str(tmp_path / "store"), _LIMIT_S) for rank in BOTH]

    def run(rank: int) -> Any:
        group: Any = both[rank].of(BOTH)
        assert group.allreduce([torch.ones(1)]).get_future().wait()[0].item() == 2
        work, _ = _reduce_scatter_single(group, torch.ones(2), rank)
        work.get_future().wait()
        return group

    with ThreadPoolExecutor() as pool:
        group, _ = pool.map(run, BOTH)
        work = group.barrier()  # to which the other one does not come
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(milliseconds=1))
        assert not work.is_completed()
        waiting = pool.submit(work.get_future().wait)
        for groups in both:
            groups.close("rank 1 died")
        # Not raised here: torch keeps the error in the future, which the traceback would then keep.
        assert "rank 1 died" in str(waiting.exception(_LIMIT_S / 2))
