"""Kills of the process that writes files of tables: no row is lost, none is there twice, and no file is unreadable."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from monarch_hpc.core.machine.procfs import read_cpu_s
from monarch_hpc.telemetry.kept.reading import find_kept
from tests.child import child
from tests.system.telemetry.test_kept import Written, calls_of, kept

pq = pytest.importorskip("pyarrow.parquet")

NUM_KILLS = int(os.environ.get("NUM_KILLS", "4"))
"""More of them search longer, with `PATIENCE`: a kill takes a few seconds."""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    with contextlib.closing(Written(tmp_path)) as written:
        yield written


class SeenFiles:
    """What is kept at several times, of which files that were there before, and never change, are not read again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.known: dict[Path, list[int]] = {}

    def numbers(self, table: str, column: str) -> list[int]:
        """One column of all rows, sorted."""
        found = find_kept(self.directory)
        assert found.unreadable == []
        numbers = []
        for path in found.files.get(table, {}):
            if path not in self.known:
                self.known[path] = pq.read_table(path, columns=[column])[column].to_pylist()
            numbers += self.known[path]
        for rows in found.rows([table], columns={table: [column]}).values():
            numbers += rows[column].to_pylist()
        return sorted(numbers)


def test_kills_while_files_are_written_lose_and_double_nothing(written: Written, tmp_path: Path) -> None:
    chance, seen, whole_s, num_ended = random.Random(5), SeenFiles(tmp_path), 0.0, 0
    argv = [sys.executable, "-m", "monarch_hpc.telemetry.kept.compact", str(tmp_path), "0", str(1 << 30)]
    for number in range(NUM_KILLS + 1):
        written.handle(2000)
        written.recorder.metric(0, written.recorder.names.metric("loss"), 0, number, 1.0)
        written.keeper.finish()
        # Somewhere in its imports, its reading, its writing, or after its end; by CPU time, whatever else runs. The
        # first one shows how long it takes.
        killed_s = chance.uniform(0.3, 1.1) * whole_s if number else 60.0
        with child(subprocess.Popen(argv)) as process:
            used_s = 0.0
            while process.poll() is None and used_s < killed_s:
                used_s = max(used_s, read_cpu_s(process.pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.01)
            process.kill()
            num_ended += process.wait() == 0
        whole_s = whole_s or used_s
        assert seen.numbers("handled", "call") == [*range(1, 2000 * (number + 1) + 1)]
        assert seen.numbers("metrics", "step") == [*range(number + 1)]
    assert calls_of(tmp_path) == [*range(1, 2000 * (NUM_KILLS + 1) + 1)]
    assert sorted(row["step"] for row in kept(tmp_path, "metrics")) == [*range(NUM_KILLS + 1)]
    print(f"{NUM_KILLS} kills, {num_ended - 1} of them after the end; {len(seen.known)} files of tables")
