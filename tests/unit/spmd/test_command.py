"""torchrun's command line says which script runs, and on how many hosts and ranks."""

from __future__ import annotations

import pytest

from monarch_hpc.spmd.command import TorchrunCommand, parse_torchrun


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("torchrun train.py --lr 3", (("train.py", "--lr", "3"), 1, 1)),
        ("torchrun --standalone --nproc-per-node=4 train.py", (("train.py",), 1, 4)),
        ("torchrun --nproc_per_node 4 --nnodes 2:2 -m pack.train -m x", (("-m", "pack.train", "-m", "x"), 2, 4)),
        ("python -m torch.distributed.run --rdzv_backend c10d --nproc-per-node=2 a.py", (("a.py",), 1, 2)),
        ("python a.py --nproc-per-node=2", (("a.py", "--nproc-per-node=2"), 1, 1)),
        ("python3 -m pack.train", (("-m", "pack.train"), 1, 1)),
    ],
)
def test_a_command_is_read(words: str, wanted: tuple[tuple[str, ...], int, int]) -> None:
    assert parse_torchrun(words.split()) == TorchrunCommand(*wanted)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "is not a command of torchrun"),
        ("bash train.sh", "'bash' is not a command of torchrun"),
        ("torchrun", "names no script"),
        ("torchrun -m", "names no script"),
        ("torchrun --nproc-per-node", "lacks its value"),
        ("torchrun --nproc-per-node=gpu a.py", "give a number"),
        ("torchrun --nnodes=1:4 a.py", "not a fixed number"),
        ("torchrun --nnodes=0 a.py", "not a fixed number"),
        ("torchrun --no-python a.sh", "not supported"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(words: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_torchrun(words.split())
