"""The wait for agents uses a monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.allocation.ready import write_ready
from monarch_hpc.config.load import load
from monarch_hpc.core.storage.files import write_json
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.directory import look
from monarch_hpc.slurm.job import Lifecycle, Stage
from monarch_hpc.slurm.record import AllocationRecord
from monarch_hpc.slurm.registry import Registry, Snapshot
from monarch_hpc.slurm.startup import PollInterval, Startup
from tests.unit.slurm.makers import ready, record


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_while_agents_start_costs_nobody_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    folder = tmp_path / "job" / "attempts" / "1"
    folder.mkdir(parents=True)
    write_json(folder / "granted.json", {"schema": 1, "job_id": 7, "nodelist": "n1", "restarts": 0, "time_s": 1000})
    made = replace(record(job_id=7), directory=tmp_path / "job")
    real = time.time

    def snapshot(records: Sequence[AllocationRecord], max_age_s: float) -> Snapshot:
        line = f"7|{made.job_name}|RUNNING|1|n1|2026-11-21T14:00:00|30:00|None\n"
        return Snapshot(0.0, frozenset(), line)

    stages: list[Stage] = []

    def tell(life: Lifecycle) -> None:
        stages.append(life.stage)
        monkeypatch.setattr(time, "time", lambda: real() + step_s)
        if len(stages) == 2:
            write_ready(folder, ready(["n1"]))

    slurm = SlurmClient({"PATH": str(tmp_path)}, 1.0)
    startup = Startup(
        load().config.slurm, Registry(tmp_path / "state"), slurm, snapshot, made, None, partial(look, made.directory)
    )
    assert startup.follow(tell, lambda: len(stages) > 2).stage is Stage.READY
    assert stages == [Stage.GRANTED, Stage.GRANTED, Stage.READY]


def test_ten_minutes_in_the_queue_take_few_requests() -> None:
    interval, waited_s, num_requests = PollInterval(5.0, 60.0, lambda: 0.5), 0.0, 0
    while waited_s < 600.0:
        waited_s += interval.take(granted=False)
        num_requests += 1
    assert num_requests <= 13  # besides sbatch, and the squeue before it


def test_requests_are_never_more_frequent_than_a_site_allows() -> None:
    for chance in (0.0, 0.999):
        interval = PollInterval(60.0, 180.0, lambda chance=chance: chance)  # type: ignore[misc]
        taken = [interval.take(granted=False) for _ in range(4)]
        assert all(at_least <= one <= at_least * 1.2 for at_least, one in zip((60, 120, 180, 180), taken, strict=True))
    assert PollInterval(5.0, 60.0, lambda: 0.0).take(granted=True) == 5.0


def test_an_overloaded_slurmctld_is_asked_half_as_often_each_time() -> None:
    interval = PollInterval(60.0, 60.0, lambda: 0.0)
    seen = [interval.take(granted=False)]
    for _ in range(5):
        interval.slow_down()
        seen.append(interval.take(granted=True))
    assert seen == [60.0, 120.0, 240.0, 480.0, 480.0, 480.0]
