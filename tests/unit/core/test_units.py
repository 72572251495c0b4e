from __future__ import annotations

import pytest

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.units import (
    format_duration,
    format_size,
    format_slurm_time,
    parse_duration,
    parse_size,
    parse_span,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        (" 30 ", 1800),
        ("1:30", 90),
        ("0:05", 5),
        ("1:02:03", 3723),
        ("100:00:00", 360_000),
        ("2-0", 172_800),
        ("1-2:03", 93_780),
        ("1-2:03:04", 93_784),
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1d", 86_400),
    ],
)
def test_times_as_slurm_and_people_write_them(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0:00", "-5", "UNLIMITED", "1:2:3:4", "1-", "5x", "1.5h", "30; rm", "٣٠", "9" * 30]
)
def test_what_is_no_time_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match="write 30"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2), ("2m", 120), (" 1h ", 3600), ("1:30", 90), ("0:00:07", 7), ("1-2", 93_600)]
)
def test_times_that_are_no_limits_of_slurms_have_a_unit(text: str, seconds: int) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2", "a number without a unit; write 2s, 2m or 2h"),
        (" 30 ", "write 30s, 30m or 30h"),
        ("0", "not a time; write 90s"),
        ("0s", "more than 0"),
        ("1.5h", "not a time; write 90s"),
        ("", "not a time"),
        ("٣", "not a time"),
    ],
)
def test_a_number_without_a_unit_is_no_time_outside_of_slurm(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_span(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.04, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.7, "1 h"),
        (7500, "2 h 5 min"),
        (86_399, "23 h 59 min"),
        (97_200, "1 d 3 h"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00:00"), (90, "00:01:30"), (93_784, "1-02:03:04")])
def test_times_for_slurm(seconds: int, text: str) -> None:
    assert format_slurm_time(seconds) == text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("4096B", 4096), ("64K", 65_536), ("64 KiB", 65_536), ("2gb", 2 << 30), ("1T", 1 << 40)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "1.5G", "-1", "1Q", "1KK", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1_048_575, "1 MiB"), (1536 << 20, "1.5 GiB"), (5 << 50, "5 PiB")],
)
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text
