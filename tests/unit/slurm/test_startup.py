"""The wait for agents uses a monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.allocation.ready import write_ready
from monarch_hpc.config.load import load
from monarch_hpc.core.storage.files import write_json
from monarch_hpc.slurm.client import SlurmClient
from monarch_hpc.slurm.job import Lifecycle, Stage
from monarch_hpc.slurm.registry import AllocationRecord, Registry, Snapshot
from monarch_hpc.slurm.startup import Startup
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
    startup = Startup(load().config.slurm, Registry(tmp_path / "state"), slurm, snapshot, made)
    assert startup.follow(tell, lambda: len(stages) > 2).stage is Stage.READY
    assert stages == [Stage.GRANTED, Stage.GRANTED, Stage.READY]
