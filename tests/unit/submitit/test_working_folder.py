"""The working folder of jobs: its modules are found, unless other users may have put them there."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from submitit.core.utils import DelayedSubmission, pickle_load

from monarch_hpc.submitit.tasks.environment import plan_environment
from monarch_hpc.submitit.tasks.task_order import TaskOrder, encode_order
from monarch_hpc.submitit.tasks.working_folder import admit_working_folder
from tests.child import child
from tests.guards.tree import ROOT
from tests.system.support.submitit_plugin import write_plugin
from tests.unit.submitit.makers import submission


def use_helper() -> int:
    return int(importlib.import_module("helper_of_the_user").VALUE)


@pytest.mark.parametrize(("mode", "admitted"), [(0o700, True), (0o755, True), (0o1777, False), (0o777, False)])
def test_only_a_folder_that_others_may_not_write_is_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, admitted: bool
) -> None:
    tmp_path.chmod(mode)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/first"])
    warning = admit_working_folder()
    assert sys.path == ([str(tmp_path), "/first"] if admitted else ["/first"])
    if admitted:
        assert not warning
    else:
        assert f"chmod go-w {tmp_path}" in warning and f"mode {mode:04o}" in warning


@pytest.fixture(params=[0o755, 0o1777])
def cwd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A working folder with a module that the user needs, and one that another user may have planted."""
    made = tmp_path / "cwd"
    made.mkdir()
    (made / "selectors.py").write_text("open('planted', 'w')\nfrom _selectors import *\n")
    (made / "helper_of_the_user.py").write_text("VALUE = 7\n")
    made.chmod(request.param)
    return made


def check(cwd: Path, result: Path, error_stream: str) -> None:
    """A module of the folder was used if only its owner may write there; none before the user's function."""
    kind, value = pickle_load(result)
    assert not (cwd / "planted").exists(), error_stream
    if cwd.stat().st_mode & 0o777 == 0o755:
        assert (kind, value) == ("success", 7), value
        assert "chmod" not in error_stream
    else:
        assert kind == "error" and "helper_of_the_user" in value
        assert f"chmod go-w {cwd}" in error_stream


def test_a_batch_job_runs_no_module_of_a_folder_that_others_may_write(cwd: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    DelayedSubmission(use_helper).dump(jobs / "7_submitted.pkl")
    words = [sys.executable, "-u", "-P", "-m", "monarch_hpc.submitit.batch_task", str(jobs)]
    names = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    names |= {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n1"}
    ended = subprocess.run(
        words, cwd=cwd, env={**names, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    check(cwd, jobs / "7_0_result.pkl", ended.stderr)


def test_nor_does_a_job_on_an_allocation(cwd: Path, tmp_path: Path) -> None:
    jobs, plugin = tmp_path / "jobs", write_plugin(tmp_path)
    jobs.mkdir()
    DelayedSubmission(use_helper).dump(jobs / "m1_submitted.pkl")
    variables = plan_environment(submission("m1"), 0, 0, ["localhost"], [], "CUDA_VISIBLE_DEVICES")
    order = TaskOrder("1", str(jobs), 0o022, variables, str(jobs / "out"), str(jobs / "err"))
    started = subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "monarch_hpc.submitit.tasks.fork_server", "1"],
        cwd=cwd,
        env={"PYTHONPATH": f"{ROOT}{os.pathsep}{plugin}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child(started) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(encode_order(order))
        server.stdin.flush()
        assert any(b"code" in line for line in server.stdout)
        server.stdin.close()
        server.wait()
    check(cwd, jobs / "m1_0_result.pkl", (jobs / "err").read_text())
