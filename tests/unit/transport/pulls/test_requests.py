"""Messages about pulls survive the way, and anything else is a FrameError."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.pulls.requests import (
    SOURCE,
    Beginning,
    PullStep,
    PullTarget,
    make_pull,
    number_of,
    pack_number,
    pack_trouble,
    parse_pull,
    trouble_of,
)
from monarch_hpc.wire.frames import Frame, Kind

COPY = os.urandom(ID_BYTES)
TARGET = PullTarget(os.urandom(ID_BYTES), 5, 2**40, 4096, os.urandom(ID_BYTES), 7, 0.25)
BEGINNING = Beginning(SOURCE, 2**63, os.urandom(ID_BYTES), 9, True, "a1", ("tcp://10.0.0.1:5", "tcp://[::1]:6"))


@pytest.mark.parametrize("step", PullStep)
def test_a_message_survives(step: PullStep) -> None:
    assert parse_pull(make_pull(step, 3, COPY, b"rest")) == (step, COPY, b"rest")


def test_what_a_message_says_survives() -> None:
    assert PullTarget.parse(TARGET.pack()) == TARGET
    assert Beginning.parse(BEGINNING.pack()) == BEGINNING
    assert number_of(pack_number(2**50)) == 2**50
    assert trouble_of(pack_trouble(SOURCE, "no way", refused=True)) == (SOURCE, True, "no way")


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.PULL, 77, 1, COPY),
        Frame(Kind.PULL, PullStep.OPEN, 1, COPY[:-1]),
        Frame(Kind.PULL, PullStep.OPEN, 1, COPY, [b"buffer"]),
    ],
    ids=["step", "identifier", "buffers"],
)
def test_another_frame_is_none(frame: Frame) -> None:
    with pytest.raises(FrameError):
        parse_pull(frame)


@pytest.mark.parametrize("parse", [PullTarget.parse, Beginning.parse, number_of, trouble_of])
@pytest.mark.parametrize("num_bytes", [0, 1, 7])
def test_what_is_cut_off_is_none(parse: Callable[[bytes], object], num_bytes: int) -> None:
    with pytest.raises(FrameError):
        parse(bytes(num_bytes))


@pytest.mark.parametrize(
    "change",
    [
        {"num_bytes": 0},
        {"chunk_bytes": 0},
        *({"report_s": time_s} for time_s in (0.0, -1.0, float("nan"), float("inf"))),
    ],
    ids=str,
)
def test_a_target_without_bytes_or_time_is_none(change: dict[str, float]) -> None:
    fields = {name: getattr(TARGET, name) for name in TARGET.__slots__} | change
    with pytest.raises(FrameError):
        PullTarget.parse(PullTarget(**fields).pack())
