"""Specifications of jobs: comparison, saving, and invalid arguments."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.core.uid import ProcId
from monarch_hpc.job import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    LocalJob,
    MeshAdminConfig,
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
from monarch_hpc.job.seal import seal
from monarch_hpc.job.spmd import SPMDJob, serve


class PaperJob(JobTrait):
    """A job whose hosts are a line in a file."""

    def __init__(self, size: int, file: Path) -> None:
        super().__init__()
        self.size = size
        self.path = str(file)

    @property
    def file(self) -> Path:
        return Path(self.path)

    def spec(self) -> Mapping[str, object]:
        return {"size": self.size}

    def alive(self) -> bool:
        return self.file.exists()

    def _create(self, client_script: str | None) -> None:
        self.file.write_text(str(self.size))

    def _state(self) -> JobState:
        return JobState({})

    def _kill(self) -> None:
        self.file.unlink()


class CloudJob(JobTrait):
    """A job as programs written for Monarch define their own: with `can_run`, and neither `spec` nor `alive`."""

    def __init__(self, cluster: str) -> None:
        super().__init__()
        self.cluster = cluster
        self.launched = False

    def _create(self, client_script: str | None) -> None:
        self.launched = True

    def _state(self) -> JobState:
        return JobState({})

    def can_run(self, spec: JobTrait) -> bool:
        return self.launched and isinstance(spec, CloudJob) and spec.cluster == self.cluster

    def _kill(self) -> None:
        self.launched = False


job = LocalJob()


def test_a_job_of_monarchs_kind_is_found_by_the_next_program(tmp_path: Path) -> None:
    saved = str(tmp_path / "job.pkl")
    first = CloudJob("a")
    first.state(saved)
    second = CloudJob("a")
    second.state(saved)
    assert second.apply_id == first.apply_id and second.launched
    with pytest.raises(AllocationError, match="cannot run this one"):
        CloudJob("b").state(saved)
    second.kill()
    second.dump(saved)
    third = CloudJob("b")
    third.state(saved)  # the saved job has ended
    assert third.apply_id not in (None, first.apply_id)


class RacingJob(PaperJob):
    """A paper job during whose request another program asks for the same, and is faster."""

    rival: PaperJob | None = None

    def _create(self, client_script: str | None) -> None:
        super()._create(client_script)
        if RacingJob.rival is None:
            RacingJob.rival = RacingJob(self.size, self.file.with_name("rival"))
            RacingJob.rival.state(str(self.file.with_name("job.pkl")))


@pytest.mark.parametrize("before", ["nothing", "an ended job"])
def test_programs_that_start_at_once_use_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    saved = str(tmp_path / "job.pkl")
    if before == "an ended job":
        old = PaperJob(2, tmp_path / "old")
        old.state(saved)
        old.file.unlink()
    monkeypatch.setattr(RacingJob, "rival", None)
    mine = RacingJob(2, tmp_path / "mine")
    mine.state(saved)
    assert RacingJob.rival is not None and mine.apply_id == RacingJob.rival.apply_id == job_load(saved).apply_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.pkl", "rival"], "the later one was given back"
    again = RacingJob(2, tmp_path / "again")
    again.state(saved)
    assert again.apply_id == mine.apply_id


def test_an_admin_server_is_not_started_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    job = LocalJob()
    assert job.enable_admin(MeshAdminConfig("[::]:1729")) is job and job.enable_admin(admin_addr="[::]:1729") is job
    assert "monarch-hpc status" in caplog.text
    with pytest.raises(TypeError, match="port"):
        job.enable_admin(port=1)


def test_a_job_of_torchrun_is_saved_with_its_command(tmp_path: Path) -> None:
    job = serve(["torchrun", "--nproc-per-node=2", "train.py"], "local_cwd")
    job.dump(str(tmp_path / "job.pkl"))
    loaded = job_load(str(tmp_path / "job.pkl"))
    assert isinstance(loaded, SPMDJob) and loaded.active and loaded.spec() == job.spec()
    with pytest.raises(ValueError, match="no scheduler 'mast_conda' here"):
        serve(["torchrun", "train.py"], "mast_conda")
    with pytest.raises(ValueError, match="2 hosts are wanted"):
        serve(["torchrun", "--nnodes=2", "train.py"], "local_cwd")
    with pytest.raises(TypeError, match="appdef"):
        serve("torchrun train.py")


def test_a_job_is_applied_once_and_found_by_the_next_program(tmp_path: Path) -> None:
    saved, file = str(tmp_path / "folder" / "job.pkl"), tmp_path / "file"
    first = PaperJob(3, file)
    assert not first.active and first.apply_id is None
    first.state(saved)
    first.apply()
    assert first.active and file.read_text() == "3"
    second = PaperJob(3, file)
    second.state(saved)
    assert second.apply_id == first.apply_id
    assert first.can_run(PaperJob(3, file)) and not first.can_run(PaperJob(4, file))
    second.kill()
    assert not second.active and not file.exists()
    third = PaperJob(4, file)
    third.state(saved)  # the saved job has ended
    assert third.apply_id not in (None, first.apply_id) and job_load(saved).apply_id == third.apply_id


def test_a_job_that_lives_and_differs_is_never_touched(tmp_path: Path) -> None:
    saved, file = str(tmp_path / "job.pkl"), tmp_path / "file"
    PaperJob(3, file).state(saved)
    changed = PaperJob(4, file)
    with pytest.raises(AllocationError) as caught:
        changed.state(saved)
    assert "size is 3, wanted is 4" in str(caught.value) and "kill()" in str(caught.value)
    assert not changed.active and file.read_text() == "3" and job_load(saved).active
    with pytest.raises(AllocationError, match="a LocalJob is wanted"):
        LocalJob().state(saved)


def test_a_saved_job_is_private_and_is_a_job(tmp_path: Path) -> None:
    saved = tmp_path / "job.pkl"
    LocalJob(("a", "b")).dump(str(saved))
    assert saved.stat().st_mode & 0o777 == 0o600
    loaded = job_load(str(saved))
    assert isinstance(loaded, LocalJob) and loaded.spec() == {"hosts": ("a", "b")}
    assert loaded.dumps() == job_loads(loaded.dumps()).dumps()
    saved.chmod(0o666)
    with pytest.raises(ConfigError, match="open to other users"):
        job_load(str(saved))
    with pytest.raises(FileNotFoundError):
        job_load(str(tmp_path / "none"))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_saved_job_of_somebody_else_is_not_believed_and_runs_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "job.pkl"
    write_private(saved, pickle.dumps(Bomb(tmp_path / "ran")))  # as if unpacked here from an archive
    with pytest.raises(ConfigError, match="not a job that your programs saved"):
        job_load(str(saved))
    assert not (tmp_path / "ran").exists()
    # A genuine file, changed to name other processes to kill and another folder to remove.
    true = json.loads(ProcessJob({"a": 1}).dumps())
    victim = tmp_path / "precious"
    victim.mkdir()
    true["state"] |= {"_apply_id": "x", "_directory": str(victim), "_pids": [os.getpid()]}
    forged: list[object] = [true, {**true, "seal": "0" * 64}, {"seal": None}, [], {**true, "seal": "\udcff"}]
    for document in forged:
        write_private(saved, json.dumps(document).encode())
        with pytest.raises(ConfigError, match="not a job that your programs saved"):
            ProcessJob({"a": 1}).state(str(saved))
        assert victim.exists()


def test_a_class_that_a_program_has_not_imported_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(TypeError, match=r"holds a evil\.Job, which this program has not imported"):
        job_loads(seal({"schema": 1, "job": "evil.Job", "state": {}}))


def test_what_json_would_change_is_refused_before_it_is_saved(tmp_path: Path) -> None:
    job = PaperJob(1, tmp_path / "file")
    for value in ((1, 2), {1: 2}, tmp_path, float("nan")):
        job.size = value  # type: ignore[assignment]
        with pytest.raises(TypeError, match=r"a PaperJob cannot be saved as JSON.*__getstate__"):
            job.dump(str(tmp_path / "job"))
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_folder_or_the_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "shared").mkdir()
    precious = tmp_path / "home" / "spec"
    precious.write_text("precious")
    monkeypatch.chdir(tmp_path / "shared")
    os.symlink(tmp_path / "home", ".monarch")
    for act in (lambda: set_current_job("a.job"), load_current_job, LocalJob().state, job_load):
        with pytest.raises(ConfigError, match="is a symbolic link"):
            act()
    os.unlink(".monarch")
    os.mkdir(".monarch")
    for name in ("spec", "job_state.pkl"):
        os.symlink(precious, f".monarch/{name}")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        load_current_job()
    with pytest.raises(ConfigError, match="is a symbolic link"):
        job_load()
    set_current_job("a.job")
    LocalJob().dump(DEFAULT_JOB_PATH)
    assert precious.read_text() == "precious" and not os.path.islink(".monarch/spec")
    os.chmod(".monarch", 0o777)
    for act in (lambda: set_current_job("a.job"), load_current_job, LocalJob().state, job_load):
        with pytest.raises(ConfigError, match=r"may be written by other users \(mode 0777"):
            act()


def test_no_client_is_started_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"monarch-hpc run train\.py"):
        PaperJob(1, tmp_path / "file").apply("train.py")
    assert not (tmp_path / "file").exists()


def test_the_job_of_a_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="set_current_job"):
        load_current_job()
    set_current_job(f"{__name__}.job")
    assert load_current_job() is job
    set_current_job(f"{__name__}.LocalJob")
    assert isinstance(load_current_job(), LocalJob)
    assert os.stat(".monarch/spec").st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match=r"package\.module\.name"):
        set_current_job("job")


JOBS_OF_THE_FOLDER = """
from shutil import rmtree as borrowed
from monarch_hpc.job import LocalJob
CALLS = []
def make(): CALLS.append(1); return LocalJob(["made"])
def other(): CALLS.append(1); return 3
"""


def test_only_jobs_and_functions_of_the_folder_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for folder in ("jobs_here", "env/lib/site-packages/jobs_installed"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(JOBS_OF_THE_FOLDER)
    monkeypatch.syspath_prepend(tmp_path / "env/lib/site-packages")
    set_current_job("jobs_here.make")
    assert load_current_job().spec() == {"hosts": ("made",)}
    set_current_job("jobs_here.other")
    with pytest.raises(TypeError, match=r"jobs_here\.other is a int, not a job"):
        load_current_job()
    assert sys.modules["jobs_here"].CALLS == [1, 1]
    for name in ("jobs_here.borrowed", "jobs_installed.make", "monarch_hpc.cli.main.main"):
        set_current_job(name)
        with pytest.raises(TypeError, match="is a function, not a job"):
            load_current_job()
    assert sys.modules.pop("jobs_installed").CALLS == []
    del sys.modules["jobs_here"]
    for name in ("pdb.set_trace", "antigravity.webbrowser", "os.path.abspath"):
        set_current_job(name)
        with pytest.raises(TypeError, match="Python's own"):
            load_current_job()
    assert "antigravity" not in sys.modules


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


def test_settings_of_telemetry_are_checked() -> None:
    assert job.enable_telemetry(TelemetryConfig(include_dashboard=True)) is job
    assert job.enable_telemetry(retention_secs=10) is job
    with pytest.raises(TypeError):
        job.enable_telemetry(retention=10)
    with pytest.raises(TypeError, match=r"config is .*: give TelemetryConfig\(\)"):
        job.enable_telemetry({"include_dashboard": True})  # type: ignore[arg-type]
    for port in (-1, 65536):
        with pytest.raises(ValueError, match="dashboard_port is"):
            job.enable_telemetry(dashboard_port=port)
    with pytest.raises(TypeError, match="include_dashboard is 'yes'"):
        TelemetryConfig(include_dashboard="yes")  # type: ignore[arg-type]


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
    with pytest.raises(ValueError, match="not a list"):
        deserialize_service_proc_ids("3")
    assert ranked_service_proc_id_from_env() is None
    monkeypatch.setenv("MONARCH_SERVICE_PROC_IDS", text)
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert ranked_service_proc_id_from_env(rank_env="SLURM_NODEID") == ids[1] and isinstance(ids[1], ProcId)
    monkeypatch.setenv("SLURM_NODEID", "2")
    with pytest.raises(ValueError, match="has 2 identities"):
        ranked_service_proc_id_from_env(rank_env="SLURM_NODEID")
    assert os.environ["SLURM_NODEID"] == "2"
