"""A rank's undo log: back to the last commit, or forward to the one that it has prepared, whose update it may owe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.worker.healing.journal import Journal
from monarch_hpc.tensor.worker.values import Values

PARAMETER, BUFFER, GRADIENT = 1, 2, 3


def _begun() -> tuple[Journal, Values, Callable[[], None]]:
    """A rank at version 1 that has changed a buffer in the next step, and the update that it has prepared."""
    values = Values()
    journal = Journal(values)
    values[PARAMETER], values[BUFFER] = torch.zeros(2), torch.zeros(2)
    journal.start_at(1, GRADIENT)
    journal.save([values[BUFFER]])
    values[BUFFER].add_(5)
    values[GRADIENT] = torch.ones(2)

    def update() -> None:
        journal.save([values[PARAMETER]])
        values[PARAMETER].sub_(values[GRADIENT])

    journal.prepare(2, GRADIENT + 1, update)
    return journal, values, update


def test_it_goes_forward_with_the_update_that_it_owes_and_once_only() -> None:
    journal, values, _ = _begun()
    for _ in range(2):
        journal.roll(2, again=False)
        assert (values[PARAMETER].tolist(), values[BUFFER].tolist()) == ([-1, -1], [5, 5])
    assert (journal.version, journal.mark, journal.effects, journal.prepared) == (2, GRADIENT + 1, 0, None)


def test_it_goes_back_without_the_update() -> None:
    journal, values, _ = _begun()
    journal.roll(1, again=False)
    assert (values[PARAMETER].tolist(), values[BUFFER].tolist()) == ([0, 0], [0, 0])
    assert GRADIENT not in values
    assert (journal.version, journal.prepared) == (1, None)


def test_an_update_of_a_commit_that_is_done_is_not_copied_and_belongs_to_it() -> None:
    journal, values, update = _begun()
    journal.update(update)
    journal.pass_on()
    journal.roll(2, again=False)
    assert values[PARAMETER].tolist() == [-1, -1]


def test_a_commit_that_is_withdrawn_cannot_be_gone_forward_to() -> None:
    journal, _, _ = _begun()
    journal.withdraw()
    with pytest.raises(RuntimeError, match="at version 1 and prepared None, not 2"):
        journal.roll(2, again=False)


def test_memory_that_a_function_released_comes_back() -> None:
    journal, values, _ = _begun()
    values[BUFFER].untyped_storage().resize_(0)
    journal.roll(1, again=False)
    assert values[BUFFER].tolist() == [0, 0]


def test_memory_that_torch_cannot_resize_is_written_back() -> None:
    """That of a replacement, which arrived from another rank."""
    values = Values()
    journal = Journal(values)
    values[BUFFER] = torch.frombuffer(bytearray(8), dtype=torch.float32)
    journal.start_at(1, GRADIENT)
    journal.save([values[BUFFER]])
    values[BUFFER].add_(5)
    journal.roll(1, again=False)
    assert values[BUFFER].tolist() == [0, 0]
