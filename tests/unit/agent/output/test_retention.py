"""Retention keeps the files of the latest runs, and remembers the runs whose files were removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.agent.output import retention
from monarch_hpc.agent.output.retention import Retention, printed_runs, removed_runs
from monarch_hpc.core.ids import new_run_id
from monarch_hpc.core.storage.files import private_dir


def write(directory: Path, *runs: str) -> None:
    for run in runs:
        (private_dir(directory / "runs" / run) / "r0000.n1.log").write_text(run)


@contextlib.contextmanager
def retaining(directory: Path, num_kept: int) -> Iterator[Retention]:
    made = Retention(directory, num_kept)
    yield made
    made.close(10.0)


def test_the_runs_that_ended_first_go_and_those_that_run_stay(tmp_path: Path) -> None:
    write(tmp_path, "before")  # Slurm has requeued the job since then
    with retaining(tmp_path, 2) as kept:
        write(tmp_path, "still-runs", *(f"run{number}" for number in range(5)))
        for number in (3, 0, 4, 1, 2):
            kept.ended(f"silent{number}")
            kept.ended(f"run{number}")
    assert set(printed_runs(tmp_path)) == {"still-runs", "run1", "run2"}
    assert removed_runs(tmp_path) == ["before", "run3", "run0", "run4"]


def test_nothing_is_removed_where_all_is_kept(tmp_path: Path) -> None:
    with retaining(tmp_path, 0) as kept:
        for number in range(3):
            write(tmp_path, f"run{number}")
            kept.ended(f"run{number}")
    assert len(printed_runs(tmp_path)) == 3 and removed_runs(tmp_path) == []


def test_the_list_of_what_was_removed_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_REMEMBERED", 3)
    names = [f"run{number}" for number in range(8)]
    with retaining(tmp_path, 1) as kept:
        write(tmp_path, *names)
        for name in names:
            kept.ended(name)
    assert printed_runs(tmp_path) == ["run7"]
    assert removed_runs(tmp_path) == ["run4", "run5", "run6"]


def test_a_list_that_cannot_be_written_keeps_files_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs.removed").mkdir()
    write(tmp_path, "one", "two")
    with retaining(tmp_path, 1) as kept:
        kept.ended("one")
        kept.ended("two")
    assert set(printed_runs(tmp_path)) == {"one", "two"}


def test_a_hundred_thousand_runs_have_names_of_their_own() -> None:
    # With ids of 32 bits, two of this many would collide in two of three cases; with 48 bits, in one of 50 000.
    assert len({new_run_id() for _ in range(100_000)}) == 100_000
