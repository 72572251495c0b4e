"""Collectives of a library for devices, for which other groups of gloo stand: the way there, waits, aborts, the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from monarch_hpc.tensor.stream.records import CollectiveSpec
from monarch_hpc.tensor.worker.collectives.named import options_with
from monarch_hpc.tensor.worker.collectives.staging import to_device, to_host
from tests.system.tensor.file_groups import BOTH, FileGroups, GlooLibrary

T = TypeVar("T")

_LIMIT_S = 30.0
_SHORT_S = 2.0
"""gloo's own limit, where it stands for a library: an abort does not wake all that waits in it."""

_PATIENCE_S = 8.0
_FLOATS = frozenset({torch.float32})


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def _pair(path: Path, libraries: tuple[GlooLibrary, GlooLibrary], limit_s: float = _LIMIT_S) -> list[FileGroups]:
    return [FileGroups(rank, str(path / "store"), limit_s, libraries[rank]) for rank in BOTH]


def _on_both(pool: ThreadPoolExecutor, both: list[FileGroups], run: Callable[[FileGroups, int], T]) -> list[T]:
    return list(pool.map(run, both, BOTH))


def _libraries() -> tuple[GlooLibrary, GlooLibrary]:
    return GlooLibrary("device 0", _FLOATS), GlooLibrary("device 1", _FLOATS)


def test_a_group_on_devices_is_made_once_and_at_its_first_collective(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    libraries = _libraries()
    both = _pair(tmp_path, libraries)

    def agree(groups: FileGroups, rank: int) -> list[tuple[int, int]]:
        return groups.agree(BOTH, rank + 5)

    def add(groups: FileGroups, rank: int) -> list[float]:
        x = torch.full((3,), rank + 1.0)
        groups.of(BOTH).again().allreduce([x]).wait()
        groups.drain()
        return x.tolist()

    assert _on_both(pool, both, agree) == [[(5, 6)], [(5, 6)]]  # numbers of the protocol never go there
    assert [len(one.made) for one in libraries] == [0, 0]
    for _ in range(2):
        assert _on_both(pool, both, add) == [[3.0] * 3] * 2
    assert [len(one.made) for one in libraries] == [1, 1]
    for groups in both:
        groups.close("the test is over")


@pytest.mark.parametrize(
    ("reduction", "values", "expected"),
    [
        ("sum", ([1.5], [2.0]), [3.5]),
        ("avg", ([1.0], [2.0]), [1.5]),
        ("max", ([1.0], [2.0]), [2.0]),
        ("stack", ([1.0], [2.0]), [[1.0], [2.0]]),
        ("sum", ([1], [2]), [3]),  # a type that the library does not know
        ("bor", ([True], [False]), [True]),  # nor such a reduction
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_reduction_goes_where_all_ranks_can_do_it(
    reduction: str, values: Any, expected: Any, fails: bool, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    both = _pair(tmp_path, _libraries())
    spec = CollectiveSpec((BOTH,), reduction, False, "cpu")

    def reduce(groups: FileGroups, rank: int) -> tuple[Any, int]:
        like = torch.tensor(values[0])
        given = None if fails and rank == 0 else torch.tensor(values[rank])
        result, root = groups.reduce(spec, given, like, 7 if given is None else 0)
        groups.drain()
        return result.tolist(), root

    found = _on_both(pool, both, reduce)
    assert [root for _, root in found] == [7, 7] if fails else found == [(expected, 0)] * 2
    for groups in both:
        groups.close("the test is over")


@pytest.mark.parametrize("identities", [("one", "one"), ("one", "")])
def test_ranks_that_share_a_device_or_lack_one_go_by_way_of_host_memory(
    identities: tuple[str, str], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    libraries = GlooLibrary(identities[0]), GlooLibrary(identities[1])
    both = _pair(tmp_path, libraries)
    spec = CollectiveSpec((BOTH,), "sum", False, "cpu")

    def reduce(groups: FileGroups, rank: int) -> list[float]:
        return groups.reduce(spec, torch.tensor([rank + 1.0]), torch.zeros(1), 0)[0].tolist()

    assert _on_both(pool, both, reduce) == [[3.0], [3.0]]
    assert not libraries[0].made and not libraries[1].made
    for groups in both:
        groups.close("the test is over")


def test_an_abort_ends_waits_for_devices_and_all_groups(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    libraries = _libraries()
    both = _pair(tmp_path, libraries, _SHORT_S)
    _on_both(pool, both, lambda groups, _: groups.of(BOTH).allreduce([torch.ones(1)]).wait())
    x = torch.ones(1)
    group: Any = both[0].of(BOTH)
    work = group.allreduce([x])  # to which the other rank does not come
    draining = pool.submit(both[0].drain)
    assert not work.is_completed() and not draining.done()
    both[0].abort("rank 1 died")
    with pytest.raises(RuntimeError, match="rank 1 died"):
        draining.result(_PATIENCE_S)
    with pytest.raises(RuntimeError, match="rank 1 died"):
        work.wait()
    with pytest.raises(RuntimeError, match="rank 1 died"):
        group.again().allreduce([x])
    assert libraries[0].made[0].is_aborted.wait(_PATIENCE_S)
    both[1].abort("rank 1 died")
    _on_both(pool, both, lambda groups, _: groups.begin(1, dict.fromkeys(BOTH, "127.0.0.1")))
    sums = [torch.ones(1), torch.ones(1)]
    _on_both(pool, both, lambda groups, rank: groups.of(BOTH).allreduce([sums[rank]]).wait())
    assert sums == [torch.tensor([2.0])] * 2
    assert [len(one.made) for one in libraries] == [2, 2]  # each epoch has groups of its own
    for groups in both:
        groups.close("the test is over")


def test_synchronous_collectives_can_be_waited_for_too(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """torch's own functions ask for no work, of which NCCL then gives none."""
    both = _pair(tmp_path, _libraries())

    def add(groups: FileGroups, rank: int) -> list[float]:
        x, options = torch.full((3,), rank + 1.0), options_with(dist.ReduceOp.SUM)
        options.asyncOp = False
        groups.of(BOTH).allreduce([x], options).wait()
        groups.drain()
        return x.tolist()

    assert _on_both(pool, both, add) == [[3.0] * 3] * 2
    for groups in both:
        groups.close("the test is over")


def test_what_has_connected_after_an_abort_is_aborted_too(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    libraries = _libraries()
    both = _pair(tmp_path, libraries)
    made = _on_both(pool, both, lambda groups, _: groups.of(BOTH))
    both_connected = Barrier(len(both))

    def begin(groups: FileGroups, rank: int) -> None:
        waits: Any = groups.waits
        call = waits.call

        def late(connect: Callable[[], T]) -> T:
            found: T = call(connect)
            both_connected.wait(_PATIENCE_S)  # an abort ends connections that the other rank is still making
            waits.cause = "rank 1 died"  # after the last look of that wait
            return found

        waits.call = late
        made[rank].allreduce([torch.ones(1)])

    for found in [pool.submit(begin, both[rank], rank) for rank in BOTH]:
        with pytest.raises(RuntimeError, match="rank 1 died"):
            found.result(_PATIENCE_S)
    assert all(library.made[0].is_aborted.wait(_PATIENCE_S) for library in libraries)
    for groups in both:
        groups.close("the test is over")


def test_a_collective_that_is_late_is_an_error_of_its_reader(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    both = _pair(tmp_path, _libraries(), _SHORT_S)
    _on_both(pool, both, lambda groups, _: groups.of(BOTH).allreduce([torch.ones(1)]).wait())
    both[0].of(BOTH).allreduce([torch.ones(1)])
    with pytest.raises(RuntimeError, match="NCCL"):
        both[0].drain()
    for groups in both:
        groups.close("the test is over")


def test_tensors_pass_through_host_memory() -> None:
    x = torch.arange(6.0).view(2, 3).t().requires_grad_()
    host = to_host(x)
    assert host.is_contiguous() and not host.requires_grad and torch.equal(host, x)
    assert host.data_ptr() != x.data_ptr()
    assert to_device(host, torch.device("cpu")) is host
    assert to_device(host, torch.device("meta")).shape == host.shape
