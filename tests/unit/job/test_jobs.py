"""Specifications of jobs: what they compare, what they save, what they refuse."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.uid import ProcId
from monarch_hpc.job import (
    JobState,
    JobTrait,
    LocalJob,
    ProcessJob,
    SlurmJob,
    TelemetryConfig,
    deserialize_service_proc_ids,
    job_load,
    job_loads,
    load_current_job,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
    set_current_job,
)


class PaperJob(JobTrait):
    """A job whose hosts are a line in a file."""

    def __init__(self, size: int, ledger: Path) -> None:
        super().__init__()
        self.size = size
        self.ledger = ledger

    def spec(self) -> Mapping[str, object]:
        return {"size": self.size}

    def alive(self) -> bool:
        return self.ledger.exists()

    def _create(self) -> None:
        self.ledger.write_text(str(self.size))

    def _state(self) -> JobState:
        return JobState({})

    def _kill(self) -> None:
        self.ledger.unlink()


job = LocalJob()


def test_a_job_is_applied_once_and_found_by_the_next_program(tmp_path: Path) -> None:
    saved, ledger = str(tmp_path / "folder" / "job.pkl"), tmp_path / "ledger"
    first = PaperJob(3, ledger)
    assert not first.active and first.apply_id is None
    first.state(saved)
    first.apply()
    assert first.active and ledger.read_text() == "3"
    second = PaperJob(3, ledger)
    second.state(saved)
    assert second.apply_id == first.apply_id
    assert first.can_run(PaperJob(3, ledger)) and not first.can_run(PaperJob(4, ledger))
    second.kill()
    assert not second.active and not ledger.exists()
    third = PaperJob(4, ledger)
    third.state(saved)  # what was saved has ended
    assert third.apply_id not in (None, first.apply_id) and job_load(saved).apply_id == third.apply_id


def test_a_job_that_lives_and_differs_is_never_touched(tmp_path: Path) -> None:
    saved, ledger = str(tmp_path / "job.pkl"), tmp_path / "ledger"
    PaperJob(3, ledger).state(saved)
    changed = PaperJob(4, ledger)
    with pytest.raises(AllocationError) as caught:
        changed.state(saved)
    assert "size is 3, wanted is 4" in str(caught.value) and "kill()" in str(caught.value)
    assert not changed.active and ledger.read_text() == "3" and job_load(saved).active
    with pytest.raises(AllocationError, match="a LocalJob is wanted"):
        LocalJob().state(saved)


def test_a_saved_job_is_private_and_is_a_job(tmp_path: Path) -> None:
    saved = tmp_path / "job.pkl"
    LocalJob(("a", "b")).dump(str(saved))
    assert saved.stat().st_mode & 0o777 == 0o600
    loaded = job_load(str(saved))
    assert isinstance(loaded, LocalJob) and loaded.spec() == {"hosts": ("a", "b")}
    saved.chmod(0o666)
    with pytest.raises(ConfigError, match="open to other users"):
        job_load(str(saved))
    with pytest.raises(FileNotFoundError):
        job_load(str(tmp_path / "none"))
    with pytest.raises(TypeError, match="not a job"):
        job_loads(b"\x80\x04N.")


def test_no_client_is_started_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"monarch-hpc run train\.py"):
        PaperJob(1, tmp_path / "ledger").apply("train.py")
    assert not (tmp_path / "ledger").exists()


def test_the_job_of_a_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="set_current_job"):
        load_current_job()
    set_current_job(f"{__name__}.job")
    assert load_current_job() is job
    set_current_job(f"{__name__}.LocalJob")
    assert isinstance(load_current_job(), LocalJob)
    set_current_job(f"{__name__}.os.getcwd")
    with pytest.raises((TypeError, ModuleNotFoundError)):
        load_current_job()
    with pytest.raises(ValueError, match=r"package\.module\.name"):
        set_current_job("job")


def test_what_slurm_would_drop_or_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="'gres=gpu:4'"):
        SlurmJob({"a": 1}, slurm_args=["gres=gpu:4"])
    with pytest.raises(ValueError, match="per_host"):
        SlurmJob({"a": 1}, ntasks_per_node=2)
    with pytest.raises(ValueError, match=r"meshes\['a'\] is 0: give at least 1"):
        SlurmJob({"a": 0})
    with pytest.raises(ValueError, match="meshes is empty"):
        ProcessJob({})


def test_the_specification_of_a_slurm_job_has_all_that_sbatch_is_asked_for() -> None:
    mine = SlurmJob({"a": 1}, exclusive=False, mem="4G", slurm_args=["--nice"])
    mine.add_mesh("b", 2)
    assert mine.spec()["meshes"] == {"a": 1, "b": 2}
    assert mine.differences(SlurmJob({"a": 1, "b": 2}, mem="4G", slurm_args=["--nice"])) == [
        "exclusive is False, wanted is True"
    ]
    assert list(mine._flags()) == ["--mem=4G", "--nice"]
    assert not mine.alive()


def test_telemetry_needs_no_setting_up() -> None:
    assert job.enable_telemetry(TelemetryConfig(include_dashboard=True)) is job
    assert job.enable_telemetry(retention_secs=10) is job
    with pytest.raises(TypeError):
        job.enable_telemetry(retention=10)


def test_a_job_says_which_meshes_it_has() -> None:
    with pytest.raises(AttributeError, match="no mesh 'trainers'; it has: none"):
        _ = JobState({}).trainers


def test_identities_travel_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [new_service_proc_id(), new_service_proc_id()]
    text = serialize_service_proc_ids(ids)
    assert deserialize_service_proc_ids(text) == ids
    assert service_proc_addr("tcp://h:1", ids[0]) == f"{ids[0]}@tcp://h:1"
    assert service_proc_addrs(["tcp://h:1"], None) == ["tcp://h:1"]
    with pytest.raises(ValueError, match="1 addresses for 2"):
        service_proc_addrs(["tcp://h:1"], ids)
    with pytest.raises(ValueError, match="no list"):
        deserialize_service_proc_ids("3")
    assert ranked_service_proc_id_from_env() is None
    monkeypatch.setenv("MONARCH_SERVICE_PROC_IDS", text)
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert ranked_service_proc_id_from_env(rank_env="SLURM_NODEID") == ids[1] and isinstance(ids[1], ProcId)
    monkeypatch.setenv("SLURM_NODEID", "2")
    with pytest.raises(ValueError, match="has 2 identities"):
        ranked_service_proc_id_from_env(rank_env="SLURM_NODEID")
    assert os.environ["SLURM_NODEID"] == "2"
