"""Metrics as lines and bands: values added twice, peaks that stay, outliers, values that are not numbers."""

from __future__ import annotations

import math

from monarch_hpc.telemetry.views.series import MetricStore, thin
from monarch_hpc.wire.tables.history import MetricRow


def row(value: float, step: int = -1, rank: int = 0, name: str = "loss", t: float = 0.0, tags: str = "") -> MetricRow:
    return MetricRow("run", 1, rank, "n1", 100 + rank, t, 0.0, 1, "trainer", rank, name, value, step, tags)


def test_a_value_that_comes_twice_is_there_once_and_the_later_one_counts() -> None:
    store = MetricStore()
    rows = [row(1 / (step + 1), step) for step in range(5)]
    store.add("dev", rows)
    store.add("dev", [*rows[3:], row(9.0, 4)])
    (chart,) = store.charts()
    assert (chart.name, chart.steps, chart.num_series, chart.band) == ("loss", True, 1, [])
    assert chart.lines[0].points == [(0, 1), (1, 1 / 2), (2, 1 / 3), (3, 1 / 4), (4, 9.0)]


def test_few_processes_are_lines_and_tags_set_them_apart() -> None:
    store = MetricStore()
    store.add("dev", [row(1.0, 1, rank, tags=tags) for rank in (1, 0) for tags in ("", '{"split":"test"}')])
    assert [one.label for one in store.charts()[0].lines] == [
        "r00",
        'r00 {"split":"test"}',
        "r01",
        'r01 {"split":"test"}',
    ]
    store.add("other", [row(1.0, 1)])
    assert store.charts()[0].num_series == 5


def test_many_processes_are_a_band_and_the_odd_one_is_a_line() -> None:
    store = MetricStore()
    store.add(
        "dev", [row(rank / 1000 + (50 if rank == 77 else 0), step, rank) for rank in range(200) for step in (1, 2)]
    )
    (chart,) = store.charts()
    assert chart.num_series == 200 and len(chart.lines) == 3
    assert "r77" in [line.label for line in chart.lines]
    assert [(x, low, high) for x, low, _, high in chart.band] == [(1, 0.0, 50.077), (2, 0.0, 50.077)]
    assert all(0.09 < middle < 0.11 for _, _, middle, _ in chart.band)


def test_a_peak_stays_in_a_long_line() -> None:
    points = [(float(x), 0.0) for x in range(10_000)]
    points[5_678] = (5678.0, 42.0)
    points[1_234] = (1234.0, -7.0)
    found = thin(points)
    assert len(found) <= 300 and found == sorted(found)
    assert {(5678.0, 42.0), (1234.0, -7.0)} <= set(found)


def test_what_is_no_number_is_counted_and_time_and_steps_are_apart() -> None:
    store = MetricStore()
    rows = [row(math.nan, 1), row(math.inf, 2), row(1.0, 3), row(5.0, t=100.0), row(6.0, t=101.0)]
    store.add("dev", rows)
    store.add("dev", rows)
    by_step, by_time = store.charts()
    assert (by_step.steps, by_step.lines[0].points) == (True, [(3.0, 1.0)])
    assert (by_time.steps, by_time.lines[0].points) == (False, [(100.0, 5.0), (101.0, 6.0)])
    assert by_step.odd == 2


def test_the_oldest_values_go_when_there_are_too_many() -> None:
    store = MetricStore()
    store.add("dev", [row(float(step), step) for step in range(9_000)])
    (chart,) = store.charts()
    assert chart.lines[0].points[-1] == (8999.0, 8999.0) and chart.lines[0].points[0][0] >= 4_000
