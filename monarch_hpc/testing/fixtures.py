"""Pytest fixtures for users: ``pytest_plugins = ["monarch_hpc.testing.fixtures"]`` in a conftest.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from monarch_hpc.testing.slurmlab import SlurmLab, find_problems

__all__ = ["slurmlab"]


@pytest.fixture(scope="session")
def slurmlab() -> Iterator[SlurmLab]:
    """A lab of four hosts for the whole session; it dies with pytest, even if pytest is killed.

    Tests that inject faults call `SlurmLab.reset` when they are done. If no lab can run here, tests are skipped with
    the reason.
    """
    if problems := find_problems():
        pytest.skip(f"slurmlab cannot run here: {'; '.join(problems)}")
    with SlurmLab(f"pytest-{os.getpid()}", tied=True) as lab:
        yield lab
