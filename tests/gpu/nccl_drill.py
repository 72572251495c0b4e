"""A program that calls each collective of NCCL in a group of one rank, run by tests in a process of its own.

    python -m tests.gpu.nccl_drill DEVICE

*DEVICE* is ``cuda``, of which one GPU is enough, or ``cpu``, where gloo stands for NCCL: that shows without a GPU that
the program itself is right. It prints ``passed``, or fails.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
import torch.distributed as dist

from monarch_hpc.tensor.worker.collectives.named import options_with
from monarch_hpc.tensor.worker.collectives.nccl import Nccl
from tests.system.tensor.file_groups import FileGroups, GlooLibrary

_untyped: Any = dist  # does not declare its options

_LIMIT_S = 60.0
_ALONE = (0,)
_CYCLES = 2_000_000_000
"""Of a kernel that does nothing, for about a second."""

_Ran = tuple[Any, list[torch.Tensor]]
"""A work, and where its result comes, which is what was given."""

_COLLECTIVES: dict[str, Callable[[Any, torch.Tensor, list[torch.Tensor]], _Ran]] = {
    "allreduce": lambda group, x, _: (group.allreduce([x]), [x]),
    "allreduce_coalesced": lambda group, x, _: (group.allreduce_coalesced([x]), [x]),
    "reduce": lambda group, x, _: (group.reduce([x], _untyped.ReduceOptions()), [x]),
    "broadcast": lambda group, x, _: (group.broadcast([x], _untyped.BroadcastOptions()), [x]),
    "allgather": lambda group, x, out: (group.allgather([out[:1]], [x]), out[:1]),
    "_allgather_base": lambda group, x, out: (group.all_gather_single(out[0], x), out[:1]),
    "allgather_into_tensor_coalesced": lambda group, x, out: (group.all_gather_single_coalesced(out, [x, x]), out),
    "reduce_scatter": lambda group, x, out: (
        group.reduce_scatter(out[:1], [[x]], _untyped.ReduceScatterOptions()),
        out[:1],
    ),
    "_reduce_scatter_base": lambda group, x, out: (group.reduce_scatter_single(out[0], x), out[:1]),
    "reduce_scatter_tensor_coalesced": lambda group, x, out: (group.reduce_scatter_single_coalesced(out, [x, x]), out),
    "alltoall_base": lambda group, x, out: (group.all_to_all_single(out[0], x, [], []), out[:1]),
    "alltoall": lambda group, x, out: (group.alltoall(out[:1], [x]), out[:1]),
    "scatter": lambda group, x, out: (group.scatter(out[:1], [[x]], _untyped.ScatterOptions()), out[:1]),
    "gather": lambda group, x, out: (group.gather([out[:1]], [x], _untyped.GatherOptions()), out[:1]),
}


def _each_collective(groups: FileGroups, device: str) -> None:
    group = groups.of(_ALONE)
    for name, run in _COLLECTIVES.items():
        given = torch.arange(1.0, 7.0, device=device)
        work, results = run(group, given.clone(), [torch.zeros(6, device=device) for _ in range(2)])
        assert work.wait() and work.get_future().wait() is not None, name
        groups.drain()
        for result in results:
            torch.testing.assert_close(result, given, msg=name)
        assert work.is_completed() and work.exception() is None, name


def _each_type(groups: FileGroups, device: str) -> None:
    group = groups.of(_ALONE)
    for dtype in Nccl.dtypes:
        for op in Nccl.reductions:
            is_scaled = op == dist.ReduceOp.PREMUL_SUM
            if (is_scaled or op == dist.ReduceOp.AVG) and not dtype.is_floating_point:
                continue
            if is_scaled and device == "cpu":  # gloo has none
                continue
            x = torch.ones(5, dtype=dtype, device=device)
            assert group.place_of(device, "allreduce", dtype, op).type == device
            options = options_with(_untyped.ReduceOp.PREMUL_SUM(1.0) if is_scaled else op)
            options.asyncOp = False  # as torch's synchronous functions want it
            group.allreduce([x], options).wait()
            groups.drain()
            assert x.tolist() == [1] * 5, (dtype, op)


def _order(groups: FileGroups) -> None:
    """A wait is the stream's, a drain the rank's; memory that is dropped meanwhile is not used by others."""
    group = groups.of(_ALONE)
    streams: list[Any] = [torch.cuda.current_stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
    for stream in streams:
        with torch.cuda.stream(stream):
            begun_s = monotonic()
            torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # torch's own
            x = torch.full((1 << 20,), 2.0, device="cuda")
            work = group.allreduce([x])
            work.wait()
            total = x.sum()
            del x
            torch.full((1 << 20,), 3.0, device="cuda")
            issued_s = monotonic() - begun_s
            assert not work.is_completed()
            groups.drain()
            drained_s = monotonic() - begun_s
            assert work.is_completed() and total.item() == 2.0 * (1 << 20)
            print(f"issued in {issued_s:.3f} s, drained in {drained_s:.3f} s")
            assert issued_s < drained_s / 2


def _aborted(groups: FileGroups, device: str) -> None:
    """An abort ends what is under way, and the next epoch has a communicator of its own."""
    group = groups.of(_ALONE)
    if device == "cuda":
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
    x = torch.ones(5, device=device)
    group.allreduce([x])
    groups.abort("the drill aborts it")
    for refused in (groups.drain, lambda: group.allreduce([x])):
        with pytest.raises(RuntimeError, match="the drill aborts it"):
            refused()
    groups.settle()
    groups.begin(groups.epoch + 1, {0: "127.0.0.1"})
    y = torch.ones(5, device=device)
    groups.of(_ALONE).allreduce([y]).wait()
    groups.drain()
    assert y.tolist() == [1] * 5


def main() -> None:
    """Run all."""
    (device,) = sys.argv[1:]
    assert set(_COLLECTIVES) == Nccl.collectives
    with tempfile.TemporaryDirectory() as folder:
        library = GlooLibrary("the only device") if device == "cpu" else None
        groups = FileGroups(0, str(Path(folder) / "store"), _LIMIT_S, library)
        _each_collective(groups, device)
        _each_type(groups, device)
        if device == "cuda":
            _order(groups)
        for _ in range(2):
            _aborted(groups, device)
        groups.close("the drill is over")
    print("passed")


if __name__ == "__main__":
    main()
