"""Records that are malformed, and many of them: workers go on, and hold no more than the program does."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.distributed import Mesh, distribute, module_to_mesh
from monarch_hpc.tensor import inspect, remote, sync
from monarch_hpc.tensor.opening import recovery_of
from monarch_hpc.tensor.sharded.procs import PRELOADED
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import settle

_NUM_FRAMES = int(os.environ.get("MONARCH_HPC_TEST_FRAMES", "80"))
"""Number of malformed frames."""

_NUM_OPS = int(os.environ.get("MONARCH_HPC_TEST_OPS", "8000"))
"""Number of operations in a loop, whose memory is measured: a million for a long run."""

_HOSTILE = (-(2**63), -(2**40), -2, -1, 0, 1, 2, 3, 5, 9, 14, 15, 16, 17, 18, 19, 30, 1000, 2**40, 2**63 - 1)
_GET_S = 90.0
_COLLECTIVE_S = 30.0
"""Longest wait of a rank for the others, and for a stream that a malformed record names."""


@pytest.fixture(scope="module")
def fuzzed(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Procs whose workers get malformed records."""
    found = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
    settle(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_HPC_TENSOR__FLUSH_S", "3600")  # the same frames in each run
        patch.setenv("MONARCH_HPC_TENSOR__COLLECTIVE_S", str(_COLLECTIVE_S))
        with found.activate():
            pass
    yield found
    found.stop().get(_GET_S)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@remote(propagate=lambda: torch.zeros((), dtype=torch.int64, device="meta"))
def resident_there() -> torch.Tensor:
    """Memory of a rank."""
    return torch.tensor(resident_bytes())


@remote(propagate=lambda: torch.zeros((), dtype=torch.int64, device="meta"))
def process_there() -> torch.Tensor:
    """The process of a rank."""
    return torch.tensor(os.getpid())


def test_malformed_records_end_a_frame_and_no_worker(fuzzed: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    procs = fuzzed
    frames: list[list[int]] = []
    with procs.activate():
        x: Any = torch.ones(4, 4, requires_grad=True)
        view = x._h.view
        send = view.engine.send

        def kept(**options: Any) -> None:
            frames.append(list(view.engine.ints))
            send(**options)

        with monkeypatch.context() as patch:
            patch.setattr(view.engine, "send", kept)
            for number in range(3):
                y = (x @ x * 2.5 + number)[number]
                total = y.sum()
                total.backward()
                inspect(x.grad)
                x.grad = None
                inspect(total.detach().reduce("dp"))
            step = procs.capture(lambda t: t * 2 + 1)
            for _ in range(4):
                inspect(step(x.detach()))
        process = [int(inspect(process_there(), dp=rank)) for rank in range(2)]
        draw = random.Random(16)
        for number in range(_NUM_FRAMES):
            ints = list(draw.choice(frames))
            for _ in range(draw.randint(1, 3)):
                place = draw.randrange(len(ints))
                match draw.randrange(4):
                    case 0:
                        del ints[place:]
                    case 1:
                        ints.insert(place, draw.choice(_HOSTILE))
                    case 2:
                        del ints[place]
                    case _:
                        ints[place] = draw.choice(_HOSTILE)
                if not ints:
                    break
            data = array("q", ints).tobytes() + b"x" * (number % 50 == 49)
            reports = view.run.call(10**9, (), (), data, 0, 0, (0, (), b""), -1, ()).get(_GET_S)
            assert len(reports) == 2
    # The values that the program knows may be gone, but the workers are there.
    with procs.activate():
        four: Any = torch.full((3,), 4.0)
        z = four.reduce("dp")
        assert inspect(z).tolist() == [8.0] * 3
        assert [int(inspect(process_there(), dp=rank)) for rank in range(2)] == process


def test_operations_in_a_loop_leave_nothing(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(8, 8)
        table = torch.arange(1000.0)
        step = procs.capture(lambda t: (t * 2).tanh())

        def run(num: int) -> None:
            for number in range(num // 4):
                y = x * number  # a number that changes
                y[number % 8] += 1.0 / (number + 1)
                table[number % 1000 :].sum()
                step(y)
            sync(procs)

        run(max(_NUM_OPS // 4, 4000))  # fills caches and pools
        engine = x._h.view.engine  # type: ignore[attr-defined]
        num_templates = len(engine.templates._numbers)
        here, there = resident_bytes(), int(inspect(resident_there()))
        run(_NUM_OPS)
        assert len(engine.templates._numbers) <= num_templates + 2
        assert resident_bytes() - here < 32 * 2**20
        assert int(inspect(resident_there())) - there < 32 * 2**20


def test_steps_of_which_the_program_reads_nothing_are_forgotten(procs: ProcMesh) -> None:
    mesh = Mesh(procs=procs)
    model = module_to_mesh(torch.nn.Linear(4, 4), mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    x = distribute(torch.ones(4, 4), mesh, [procs.extent.names[0]])
    recovery = recovery_of(procs)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(20):
        loss = step()
    engine = x._h.view.engine
    engine.flush()
    wait_until("the acknowledgements", lambda: not engine._frames)
    assert recovery.num_steps == mesh.version == 20
    last = step()
    assert len(recovery._snapshots) == 1  # of this step alone
    kept = [len(counts) for counts in (recovery._steps, recovery._backwards, recovery._changes)]
    assert max(kept) <= 3
    assert float(last) < float(loss)
    assert mesh.version == 21
