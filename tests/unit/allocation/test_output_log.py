"""The output of a program in segments: found by offset and by time, bounded, and readable while it is written."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from monarch_hpc.allocation.output_log import ERR, OUT, OutputLog, OutputReader, Piece, log_paths


def text_of(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def test_streams_are_read_in_order_from_any_offset(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "run", 0)
    for index, (stream, data) in enumerate([(OUT, b"one\n"), (ERR, b"two\n"), (OUT, b"three\n"), (OUT, b"4\n")]):
        log.append(stream, data, 10.0 + index)
    reader = OutputReader(tmp_path / "run")
    assert reader.read(0, 100) == [
        Piece(0, OUT, b"one\n", 10.0),
        Piece(4, ERR, b"two\n", 11.0),
        Piece(8, OUT, b"three\n", 12.0),
        Piece(14, OUT, b"4\n", 13.0),
    ]
    assert log.end == reader.end() == 16
    assert reader.read(16, 100) == []
    log.append(ERR, b"more", 20.0)
    assert reader.read(16, 100) == [Piece(16, ERR, b"more", 20.0)]
    assert reader.read(6, 4) == [Piece(6, ERR, b"o\n", 11.0), Piece(8, OUT, b"th", 12.0)]
    assert text_of(reader.read(0, 100, since_s=12.5)) == b"4\nmore"
    log.close()
    assert log_paths(tmp_path / "run", 0)[0].read_bytes() == b"one\ntwo\nthree\n4\nmore"
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()} == {0o600}


def test_any_cuts_give_the_same_bytes(tmp_path: Path) -> None:
    chance = random.Random(3)
    log, reader, seen, whole = OutputLog(tmp_path / "run", 0), OutputReader(tmp_path / "run"), b"", b""
    for _ in range(300):
        data = chance.randbytes(chance.randrange(1, 40))
        log.append(chance.choice([OUT, ERR]), data, 1.0)
        whole += data
        if chance.random() < 0.5:
            seen += text_of(reader.read(len(seen), chance.randrange(1, 60)))
    while pieces := reader.read(len(seen), 50):
        assert pieces[0].offset == len(seen)
        seen += text_of(pieces)
    assert seen == whole
    log.close()


def test_two_segments_are_kept_and_what_is_lost_is_told(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "run", 200)
    for number in range(100):
        log.append(OUT, f"{number:09}\n".encode(), 1.0)
    log.close()
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert len(names) == 4
    bases = sorted(int(name.split(".")[1]) for name in names if name.endswith(".log"))
    newest = log_paths(tmp_path / "run", bases[1])[0].read_text()
    assert newest.startswith(
        f"[monarch-hpc: earlier output is in program.{bases[0]}.log; {bases[0]} bytes before that were discarded"
    )
    (first, *_), rest = reader_parts(tmp_path / "run", 0)
    assert first.offset == bases[0]
    assert rest == b"".join(f"{number:09}\n".encode() for number in range(bases[0] // 10, 100))
    assert OutputReader(tmp_path / "run").end() == 1000


def reader_parts(folder: Path, offset: int) -> tuple[list[Piece], bytes]:
    reader, found = OutputReader(folder), []
    while pieces := reader.read(offset, 64):
        found += pieces
        offset = pieces[-1].offset + len(pieces[-1].data)
    return found, text_of(found)


def test_what_cannot_be_written_is_a_gap_and_later_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = OutputLog(tmp_path / "run", 0)
    log.append(OUT, b"before", 1.0)

    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            log.append(OUT, b"lost", 2.0)
    log.append(OUT, b"after", 3.0)
    log.close()
    pieces, _ = reader_parts(tmp_path / "run", 0)
    assert [(piece.offset, piece.data) for piece in pieces] == [(0, b"before"), (10, b"after")]


def test_a_run_without_output_has_none(tmp_path: Path) -> None:
    reader = OutputReader(tmp_path / "nothing")
    assert reader.read(0, 10) == [] and reader.end() == 0
