"""The hosts of one allocation join another: one file decides that, and whoever comes next completes the registry."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.allocation.attempts import attempt_folder
from monarch_hpc.allocation.files import MOVES
from monarch_hpc.allocation.ready import write_ready
from monarch_hpc.allocation.settings import write_config
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.storage.files import write_json
from monarch_hpc.slurm.nodes.moving import complete_move, decide_move, move_refusal
from monarch_hpc.slurm.record import AllocationRecord, Ended, current_owner
from monarch_hpc.slurm.registry import Registry
from tests.unit.slurm.makers import ready


def take(tmp_path: Path, registry: Registry, name: str, host: str, job_id: int) -> AllocationRecord:
    """An allocation of one host, whose agent is ready."""
    directory = tmp_path / name
    record = AllocationRecord(new_allocation_id(), name, directory, "1", current_owner(), 1000.0)
    registry.create(record)
    folder = attempt_folder(directory, 1)
    folder.mkdir(parents=True)
    (folder / "hosts").mkdir()
    for path in (directory, directory / "attempts", folder, folder / "hosts"):
        path.chmod(0o700)
    write_config(directory, load().config, name)
    granted = {"schema": 1, "job_id": job_id, "nodelist": host, "restarts": 0, "time_s": 1001}
    write_json(folder / "granted.json", granted)
    write_ready(folder, ready([host]))
    return registry.set_job(record, job_id, 1000.5)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "state")


@pytest.fixture
def home(tmp_path: Path, registry: Registry) -> AllocationRecord:
    return take(tmp_path, registry, "dev", "n1", 7)


@pytest.fixture
def other(tmp_path: Path, registry: Registry) -> AllocationRecord:
    return take(tmp_path, registry, "other", "n2", 8)


def test_a_job_joins_and_its_name_is_free(
    tmp_path: Path, registry: Registry, home: AllocationRecord, other: AllocationRecord
) -> None:
    job = decide_move(load().config, registry, home, other)
    assert (job.joins, job.name, job.first_rank, job.job_id) == (home.allocation, "dev", 1, 8)
    assert [record.name for record in registry.records()] == ["dev"]
    assert [record.allocation for record in registry.joined(home)] == [other.allocation]
    script = (attempt_folder(other.directory, 1) / MOVES).read_text()
    assert f"home={home.directory}" in script and f"--allocation {home.allocation}" in script
    registry.create(replace(other, allocation=new_allocation_id(), directory=tmp_path / "again"))


def test_what_a_killed_command_has_decided_is_completed(
    registry: Registry, home: AllocationRecord, other: AllocationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Registry, *_: object) -> AllocationRecord:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "join", die)
        with pytest.raises(KeyboardInterrupt):
            decide_move(load().config, registry, home, other)
    assert {record.name for record in registry.records()} == {"dev", "other"}
    assert complete_move(registry, home) == home
    moved = complete_move(registry, other)
    assert (moved.joins, moved.name) == (home.allocation, "dev") and complete_move(registry, moved) == moved
    assert [record.name for record in registry.records()] == ["dev"]


def test_nothing_happens_before_it_is_decided(
    registry: Registry, home: AllocationRecord, other: AllocationRecord
) -> None:
    folder = attempt_folder(other.directory, 1)
    (folder / "moves.json").write_text('{"schema": 1}')
    assert complete_move(registry, other) == other
    assert move_refusal(registry, home, other) == ""


@pytest.mark.parametrize(
    ("whose", "changes", "problem"),
    [
        ("other", {"release_why": "its release was requested"}, "is being released"),
        ("other", {"ended": Ended("TIMEOUT", "", "scontrol", 1.0)}, "has ended"),
        ("other", {"parted": Ended("TIMEOUT", "", "scontrol", 1.0)}, "has grown"),
        ("home", {"release_why": "its release was requested"}, "'dev', which has ended or is being released"),
        ("home", {"directory": Path("/nowhere")}, "'dev', which is not ready"),
        ("other", {"directory": Path("/nowhere")}, "is not ready"),
    ],
)
def test_what_cannot_move_is_refused(
    registry: Registry,
    home: AllocationRecord,
    other: AllocationRecord,
    whose: str,
    changes: dict[str, object],
    problem: str,
) -> None:
    records = {"home": home, "other": other}
    records[whose] = replace(records[whose], **changes)  # type: ignore[arg-type]
    assert problem in move_refusal(registry, records["home"], records["other"])
    with pytest.raises(AllocationError, match=problem):
        decide_move(load().config, registry, records["home"], records["other"])
    assert not (attempt_folder(other.directory, 1) / MOVES).exists()


def test_a_shared_host_and_the_same_allocation_are_refused(
    tmp_path: Path, registry: Registry, home: AllocationRecord
) -> None:
    shares = take(tmp_path, registry, "shares", "n1", 9)
    assert "shares host n1 with 'dev'" in move_refusal(registry, home, shares)
    assert move_refusal(registry, home, home) == "is that allocation itself"


def test_the_job_goes_on_with_the_agents_of_the_other(
    tmp_path: Path, registry: Registry, home: AllocationRecord, other: AllocationRecord
) -> None:
    decide_move(load().config, registry, home, other)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text('#!/bin/bash\necho "$@"\n')
    (commands / "srun").chmod(0o755)
    (home.directory / "key").touch()
    job = {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n2", "SLURM_NNODES": "1"}
    env = {"PATH": f"{commands}:{os.environ['PATH']}", **job}
    script = attempt_folder(other.directory, 1) / MOVES
    done = subprocess.run(["bash", script], env=env, start_new_session=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert f"--directory {home.directory} --attempt 1 --first-rank 1 --num-hosts 2".encode() in done.stdout
    assert (attempt_folder(other.directory, 2) / "granted.json").exists()
