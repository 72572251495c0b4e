"""Log files keep procs' output, in order, and are bounded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.agent.output.log_files import OLD, LogFiles
from monarch_hpc.agent.output.proc_output import NUM_LAST_LINES, LineSplitter


@contextlib.contextmanager
def log_files(root: Path, max_bytes: int = 0) -> Iterator[LogFiles]:
    files = LogFiles(root, max_bytes, lambda: None)
    try:
        yield files
    finally:
        files.close(20.0)


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
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, old.name]
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
