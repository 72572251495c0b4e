"""The variables of tasks, as submitit reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.submitit.tasks.environment import MonarchHpcJobEnvironment, plan_environment, requeue_path
from tests.unit.submitit.makers import submission


def test_a_task_finds_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order = submission("m1", num_jobs=4, num_hosts=2, tasks_per_host=3, folder=str(tmp_path))
    environment = MonarchHpcJobEnvironment()
    assert not environment.activated()
    for name, value in plan_environment(order, 2, 4, ["n1", "n7"], ["0", "3"], "ROCR_VISIBLE_DEVICES").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    assert environment.activated() and environment.cluster == "monarch_hpc"
    assert (environment.job_id, environment.array_job_id, environment.array_task_id) == ("m1_2", "m1", "2")
    assert (environment.num_tasks, environment.num_nodes) == (6, 2)
    assert (environment.global_rank, environment.node, environment.local_rank) == (4, 1, 1)
    assert environment.hostnames == ["n1", "n7"]
    environment._requeue(2)
    assert requeue_path(tmp_path, "m1_2").exists()


def test_a_job_that_is_not_in_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = plan_environment(submission("m1"), 0, 0, ["n1"], [], "CUDA_VISIBLE_DEVICES")
    assert variables["CUDA_VISIBLE_DEVICES"] == ""  # no GPU was asked for
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment = MonarchHpcJobEnvironment()
    assert (environment.job_id, environment.array_job_id) == ("m1", None)
