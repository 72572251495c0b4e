"""Lines of the output of procs, with the time that the index of their file says."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.allocation.log_index import append_entry, read_index
from monarch_hpc.attach.tables.log_rows import read_log_rows


def test_lines_have_the_time_of_their_entry(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    path = folder / "r0003.n1.log"
    path.write_bytes(b"first\nsecond\xff\nthird")
    append_entry(path, 100.0, 0)
    append_entry(path, 105.5, 6)
    (folder / "r0000.n2.log").write_text("without an index\n")
    (folder / "program.log").write_text("not of a proc\n")
    rows = [(row.run, row.rank, row.host, row.t, row.line, row.offset) for row in read_log_rows(tmp_path)]
    assert rows == [
        ("r1", 3, "n1", 105.5, "second\ufffd", 6),
        ("r1", 3, "n1", 105.5, "third", 14),
        ("r1", 3, "n1", 100.0, "first", 0),
        ("r1", 0, "n2", 0.0, "without an index", 0),
    ]
    assert read_index(path) == [(100.0, 0), (105.5, 6)]
    assert {row.file for row in read_log_rows(tmp_path)} == {"runs/r1/r0003.n1.log", "runs/r1/r0000.n2.log"}


def test_of_a_long_file_whole_lines_at_the_end_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    line = b"x" * 99 + b"\n"
    (folder / "r0000.n1.log").write_bytes(line * 20_000)
    rows = read_log_rows(tmp_path)
    assert 10_000 < len(rows) <= (1 << 20) // 100
    assert {len(row.line) for row in rows} == {99} and {row.offset % 100 for row in rows} == {0}
    assert read_log_rows(tmp_path / "none") == []
