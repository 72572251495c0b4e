from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.units import format_duration, format_size, format_slurm_time, parse_duration, parse_size


@given(st.integers(1, 10**9))
def test_slurms_form_reads_back(seconds: int) -> None:
    assert parse_duration(format_slurm_time(seconds)) == seconds


@given(st.integers(1, 10**6), st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)]))
def test_suffixes_scale(count: int, unit: tuple[str, int]) -> None:
    assert parse_duration(f"{count}{unit[0]}") == count * unit[1]


@given(st.text("0123456789:-smhdKMGiB. ", max_size=12) | st.text(max_size=8))
def test_any_text_is_a_quantity_or_an_error(text: str) -> None:
    for parse, least in ((parse_duration, 1), (parse_size, 0)):
        try:
            assert parse(text) >= least
        except ConfigError:
            continue


@given(st.integers(0, 1000), st.sampled_from("KMGTP"))
def test_whole_sizes_read_back(count: int, unit: str) -> None:
    size_bytes = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.floats(0, 1e8))
def test_times_for_people_are_short(seconds: float) -> None:
    assert len(format_duration(seconds)) <= 12
