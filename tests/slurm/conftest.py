"""Everything below needs a real Slurm, which `slurmlab` makes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.testing.fixtures import slurmlab
from monarch_hpc.testing.slurmlab import SlurmLab

__all__ = ["lab", "slurmlab"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("slurm")


@pytest.fixture
def lab(slurmlab: SlurmLab) -> Iterator[SlurmLab]:
    """The session's lab, mended and emptied after the test; files in homes stay."""
    yield slurmlab
    slurmlab.reset()
