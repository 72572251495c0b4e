"""Random programs of operations, views, writes and failures on mesh tensors: the same values as in one process."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import ProcMesh
from monarch_hpc.core.errors import RemoteOpError
from monarch_hpc.tensor import fetch_shard

_GET_S = 60.0

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "mul", "view", "row", "write", "write_row", "transpose", "drop", "grad", "reduce", "swap"]
        ),
        st.integers(0, 7),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
    max_size=40,
)


def run(steps: list[tuple[str, int, int, int]], start: list[Any], total: Any) -> list[Any]:
    """Run a program on tensors of 4 x 4; those that a failure spoils become None.

    Args:
        total: sums a tensor over the ranks; takes it and its place.
    """
    live = list(start)
    for kind, first, second, index in steps:
        x, y = live[first % len(live)], live[second % len(live)]
        match kind:
            case "add":
                live.append(x + y)
            case "mul":
                live.append((x * (0.5 + index)).clamp(-100, 100))
            case "view":
                live.append(x.view(16).view(4, 4) if x.is_contiguous() else x.contiguous())
            case "row":
                live.append(x[index].expand(4, 4) if index else x.flip(0))
            case "write":
                if x.is_contiguous():
                    x.copy_(y.clone())
            case "write_row":
                if x.is_contiguous():
                    x[index] = y[(index + 1) % 4].clone()
            case "transpose":
                live.append(x.t())
            case "drop":
                if len(live) > 3:
                    del live[first % len(live)]
            case "grad":
                leaf = y.detach().clone().requires_grad_()
                (x.detach() @ leaf).tanh().sum().backward()
                live.append(leaf.grad)
            case "reduce":
                live.append(total(x))
            case "swap":
                live[first % len(live)] = y
        if len(live) > 8:
            del live[0]
    return live


@hypothesis.settings(max_examples=40)
@hypothesis.given(steps=STEPS)
def test_a_program_makes_what_one_process_makes(procs: ProcMesh, steps: list[tuple[str, int, int, int]]) -> None:
    with procs.activate():
        place = procs.rank("dp")
        start = [torch.arange(16.0).reshape(4, 4) / 8 + place * number for number in range(3)]
        found = run(steps, start, lambda x: x.reduce("dp", "avg"))
        values = [fetch_shard(found, dp=rank).get(_GET_S) for rank in range(2)]
    own = [[torch.arange(16.0).reshape(4, 4) / 8 + rank * number for number in range(3)] for rank in range(2)]
    expected = in_step(steps, own)
    for rank in range(2):
        for value, other in zip(values[rank], expected[rank], strict=True):
            assert torch.allclose(value, other, atol=1e-5), steps


def in_step(steps: list[tuple[str, int, int, int]], start: list[list[Any]]) -> list[list[Any]]:
    """Run the program of each rank, one step of all ranks after the other."""
    live = [list(tensors) for tensors in start]
    for step in steps:
        if step[0] == "reduce":
            chosen = [tensors[step[1] % len(tensors)] for tensors in live]
            mean = (chosen[0] + chosen[1]) / 2
            live = [run([step], tensors, lambda _x, mean=mean: mean.clone()) for tensors in live]
        else:
            live = [run([step], tensors, None) for tensors in live]
    return live


@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
def test_a_failure_spoils_what_depends_on_it_and_nothing_else(procs: ProcMesh, data: st.DataObject) -> None:
    with procs.activate():
        tensors: list[Any] = [torch.ones(3), torch.ones(3)]
        spoilt = [False, False]
        for _ in range(data.draw(st.integers(1, 12))):
            first = data.draw(st.integers(0, len(tensors) - 1))
            second = data.draw(st.integers(0, len(tensors) - 1))
            match data.draw(st.sampled_from(["add", "fail", "write", "reduce"])):
                case "add":
                    tensors.append(tensors[first] + tensors[second])
                    spoilt.append(spoilt[first] or spoilt[second])
                case "fail":
                    tensors.append(tensors[first][torch.tensor([5, 5, 5])])
                    spoilt.append(True)
                case "write":
                    tensors[first].mul_(tensors[second])
                    spoilt[first] = spoilt[first] or spoilt[second]
                case "reduce":
                    tensors.append(tensors[first].reduce("dp"))
                    spoilt.append(spoilt[first])
        for tensor, is_spoilt in zip(tensors, spoilt, strict=True):
            if is_spoilt:
                with pytest.raises(RemoteOpError, match="out of bounds"):
                    fetch_shard(tensor, dp=1).get(_GET_S)
            else:
                assert fetch_shard(tensor, dp=1).get(_GET_S).shape == (3,)
        tensors.append(torch.ones(1)[torch.tensor([3])])
        with pytest.raises(RemoteOpError):
            fetch_shard(tensors[-1]).get(_GET_S)
        # Failed operations that only spoilt what was read are no news at the end of the block.
        view = tensors[0]._h.view
        view.engine.wait()
        view.engine.failures.take_unread()
