"""Log records pass among other lines, whole or not at all."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.wire.record import MARK, LogRecord, Unmarker, parse_record, render_record, split_marked

RECORD = LogRecord("lib.x", logging.WARNING, "é\nTraceback:\n  \x1b\x00", 12.5, "worker", "/a/b.py", 7, "go", "main")


def test_a_record_survives_and_is_one_line() -> None:
    line = render_record(RECORD)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert parse_record(line.decode().removesuffix("\n")) == RECORD
    assert str(RECORD) == "WARNING lib.x: é\nTraceback:\n  \x1b\x00"


@pytest.mark.parametrize("character", ["x", "é", "\x01", "\udc80", "\n"])
def test_a_long_text_is_cut_in_the_middle_and_the_line_stays_short(character: str) -> None:
    line = render_record(dataclasses.replace(RECORD, text="begin" + character * 10**6 + "end"))
    assert len(line) < 64 << 10
    found = parse_record(line.decode().removesuffix("\n"))
    assert found is not None and found.text.startswith("begin") and found.text.endswith("end")
    assert "characters left out" in found.text


@pytest.mark.parametrize(
    "line", ["", "x", MARK, MARK + "{}", MARK + "[1]", MARK + '["a","b","c",1.0,"","",1,"",""]', MARK + "[" * 10**5]
)
def test_other_lines_are_no_records(line: str) -> None:
    assert parse_record(line) is None
    assert split_marked(line) == [line]


def test_a_record_behind_a_line_that_was_not_ended() -> None:
    marked = render_record(RECORD).decode().removesuffix("\n")
    assert split_marked("10 %" + marked) == ["10 %", marked]
    assert split_marked(marked) == [marked]
    assert split_marked("a" + MARK + "b") == ["a" + MARK + "b"]


@given(st.lists(st.sampled_from([b"", b"plain", b"\x1ebroken", b"10 %", None]), max_size=8), st.data())
def test_files_get_text_for_people_however_it_is_cut(lines: list[bytes | None], data: st.DataObject) -> None:
    whole = b"".join(render_record(RECORD) if line is None else line + b"\n" for line in lines)
    expected = b"".join(f"{RECORD}\n".encode() if line is None else line + b"\n" for line in lines)
    unmarker = Unmarker(records=True)
    got = b""
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        got += unmarker.feed(whole[:size])
        whole = whole[size:]
    assert got + unmarker.flush() == expected


def test_a_file_gets_each_byte_once_where_lines_do_not_end() -> None:
    unmarker = Unmarker(records=True)
    got = unmarker.feed(b"10 %") + unmarker.feed(render_record(RECORD)) + unmarker.feed(b"20 %")
    assert got + unmarker.flush() == f"10 %\n{RECORD}\n20 %\n".encode()
    huge = MARK.encode() + b"x" * (1 << 20)
    unmarker = Unmarker(records=True)
    assert unmarker.feed(huge) + unmarker.flush() == huge + b"\n"
    plain = Unmarker(records=False)
    assert plain.feed(render_record(RECORD)) + plain.flush() == render_record(RECORD)
