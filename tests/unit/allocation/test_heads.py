"""The head of the highest term counts, wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.allocation.heads import HeadPlace, claim, read_head, write_head
from monarch_hpc.allocation.ready import check_allocation, make_ready, write_ready
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.storage.files import private_dir
from monarch_hpc.wire.control.allocation import HostEntry


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return private_dir(tmp_path / "77409869")


def entry(rank: int) -> HostEntry:
    return HostEntry(rank, f"n{rank}", [f"tcp://10.1.0.{rank}:7"], 5, "3.11.7", "0.1.0", [0], [], 1 << 30, {})


def test_the_first_term_has_one_head(directory: Path) -> None:
    claim(directory, "process 7 on n1")
    with pytest.raises(AllocationError, match="has a head already: process 7 on n1"):
        claim(directory, "process 8 on n1")


def test_the_highest_term_counts(directory: Path) -> None:
    assert read_head(directory) is None
    for term in (2, 10, 9):
        write_head(directory, HeadPlace(term, term % 4, [f"tcp://10.1.0.{term}:7"]))
    (directory / "head.claim").touch()
    (directory / "head.11.json.tmp").touch()
    assert read_head(directory) == HeadPlace(10, 2, ["tcp://10.1.0.10:7"])
    assert read_head(directory / "gone") is None


def test_programs_find_the_head_of_a_later_term(directory: Path) -> None:
    write_ready(directory, make_ready("a" * 32, 7, [entry(0), entry(1), entry(2)], []))
    write_head(directory, HeadPlace(1, 0, entry(0).addresses))
    assert check_allocation(directory).head_name == "n0"
    write_head(directory, HeadPlace(3, 2, entry(2).addresses))
    ready = check_allocation(directory)
    assert (ready.term, ready.head, ready.head_name, ready.addresses) == (3, 2, "n2", entry(2).addresses)


def test_an_earlier_heads_file_does_not_hide_the_report_of_a_later_one(directory: Path) -> None:
    write_ready(directory, make_ready("a" * 32, 7, [entry(1)], ["n0"], head=1, term=2))
    write_head(directory, HeadPlace(1, 0, entry(0).addresses))
    ready = check_allocation(directory)
    assert (ready.term, ready.head_name, ready.missing) == (2, "n1", ("n0",))
