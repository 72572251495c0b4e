"""Log files keep procs' output, in order, and are bounded."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.agent.output.log_files import OLD, LogFiles
from monarch_hpc.agent.output.proc_output import NUM_LAST_LINES, LineSplitter
from monarch_hpc.allocation.log_index import append_entry, index_of, offset_since
from monarch_hpc.testing import wait_until


@contextlib.contextmanager
def log_files(root: Path, max_bytes: int = 0) -> Iterator[LogFiles]:
    files = LogFiles(root, max_bytes, lambda: None)
    try:
        yield files
    finally:
        files.close(20.0)


def test_only_the_output_of_procs_is_indexed(tmp_path: Path) -> None:
    """Other files that are appended to say themselves when each of their lines was written."""
    with log_files(tmp_path / "runs") as files:
        output, other = files.path("aaaa", 0, "n1"), tmp_path / "changes.jsonl"
        for path in (output, other):
            files.append(path, b"x\n")
    assert index_of(output).exists() and other.exists() and not index_of(other).exists()


def test_everything_is_kept_in_order(tmp_path: Path) -> None:
    with log_files(tmp_path / "runs") as files:
        one, two = files.path("aaaa", 0, "n1"), files.path("aaaa", 1, "n1")
        for number in range(1000):
            files.append(one, b"%d\n" % number)
            files.append(two, b"x")
    assert one.read_text().split() == [str(number) for number in range(1000)]
    assert two.read_text() == "x" * 1000
    assert [path.stat().st_mode & 0o777 for path in (one, one.parent)] == [0o600, 0o700]


def test_a_file_at_its_limit_makes_room_and_says_so(tmp_path: Path) -> None:
    lines = [b"line %05d\n" % number for number in range(10_000)]
    with log_files(tmp_path / "runs", 4096) as files:
        path = files.path("aaaa", 3, "n1")
        for line in lines:
            files.append(path, line)
    old = path.with_name(path.name + OLD)
    assert path.stat().st_size <= 4096 + len(lines[0]) and old.stat().st_size <= 4096 + len(lines[0])
    names = [path.name, index_of(path).name, old.name, index_of(old).name]
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted(names)
    head, *kept = path.read_bytes().splitlines(keepends=True)
    assert f"earlier output is in {old.name}".encode() in head and b"bytes before that were discarded" in head
    whole = old.read_bytes().splitlines(keepends=True)[1:] + kept
    assert whole == lines[-len(whole) :]


def test_a_limit_smaller_than_a_line_loses_no_part_of_it(tmp_path: Path) -> None:
    with log_files(tmp_path / "runs", 1) as files:
        path = files.path("aaaa", 0, "n1")
        files.append(path, b"a" * 1000 + b"\n" + b"b" * 1000)
    assert path.read_bytes().endswith(b"b" * 1000)
    assert path.with_name(path.name + OLD).read_bytes().endswith(b"a" * 1000 + b"\n")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    with log_files(tmp_path / "runs") as files:
        path = files.path("aaaa", 0, "n1")
        path.parent.mkdir(parents=True, mode=0o700)
        path.parent.parent.chmod(0o700)
        os.symlink(tmp_path / "elsewhere", path)
        files.append(path, b"x")
    assert not (tmp_path / "elsewhere").exists()


_PIECES = st.lists(st.sampled_from([b"a", b"\n", b"line\n", b"\n" * 50, b"x\n" * 70, b"y" * 70_000]), max_size=12)


@given(_PIECES)
def test_lines_that_are_skipped_are_counted_like_those_that_are_read(pieces: list[bytes]) -> None:
    reader, skipper = LineSplitter(), LineSplitter()
    for piece in pieces:
        lines = reader.feed(piece)
        num_lines, last = skipper.skip(piece)
        assert last == lines[-NUM_LAST_LINES:]
        if not any(len(line) > 60_000 for line in lines):
            assert num_lines == len(lines)
    assert skipper.flush() == reader.flush()


def test_output_is_found_by_the_time_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    with log_files(tmp_path / "runs", 200) as files:
        path = files.path("aaaa", 0, "n1")
        old = path.with_name(path.name + OLD)
        for number in range(20):
            now_s[0] = 1000.0 + number
            line = b"line of %d\n" % now_s[0]
            files.append(path, line)
            wait_until("it is written", partial(_ends_with, path, line))

    def since(file: Path, at_s: float) -> list[bytes]:
        return file.read_bytes()[offset_since(file, at_s) or 0 :].splitlines()

    lines = [b"line of %d" % number for number in range(1000, 1020)]
    num_old = len(old.read_bytes().splitlines())
    assert 0 < num_old < 19
    assert offset_since(old, 999.0) is None  # older than all output
    assert [since(old, 1000.0 + number) for number in range(num_old)] == [lines[n:num_old] for n in range(num_old)]
    assert offset_since(path, 1000.0 + num_old - 1) is None  # it began later
    assert [since(path, at_s) for at_s in (1018.5, 1019.0, 2000.0)] == [lines[18:], lines[19:], lines[19:]]


def _ends_with(path: Path, line: bytes) -> bool:
    return path.exists() and path.read_bytes().endswith(line)


def test_a_torn_index_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append_entry(path, 1000.0, 0)
    with index_of(path).open("ab") as file:
        file.write(b"torn")
    append_entry(path, 1001.0, 50)
    assert [offset_since(path, at_s) for at_s in (999.0, 1000.5, 1001.0)] == [None, 0, 50]
    assert offset_since(tmp_path / "none", 0.0) is None
