"""Functions as batch jobs: what is refused before Slurm is asked, and states by a Slurm that forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc.core.errors import SlurmMissing
from monarch_hpc.submitit.batch import BatchJob, batch
from monarch_hpc.testing import wait_until

SCONTROL = """#!/bin/sh
[ -e answer ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
cat answer
"""
SHOWN = (
    "JobId=7 JobName=train JobState={} Reason=None ExitCode=0:15 NodeList=n[1-2] BatchHost=n1 NumNodes=2 "
    "StartTime=2026-01-01T00:00:00 EndTime=2026-01-01T00:01:00 TimeLimit=00:05:00 Restarts=0 Requeue=0\n"
)


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("fn", "options", "error", "words"),
    [
        ("train", {}, TypeError, "fn is 'train'; give the function itself"),
        (print, {"nodes": 0}, ValueError, "nodes is 0"),
        (print, {"nodes": "4"}, TypeError, "nodes is '4'"),
        (print, {"timeout_min": 0.5}, TypeError, "timeout_min is 0.5"),
        (print, {"options": "--qos=x"}, TypeError, "give a list of strings"),
        (print, {"folder": "100%"}, ValueError, "gives a percent sign"),
        (print, {"options": ["--array=1-2"]}, ValueError, "call batch once for each"),
    ],
)
def test_wrong_arguments_are_refused(
    here: Path, fn: object, options: dict[str, object], error: type[Exception], words: str
) -> None:
    put(here, "sbatch", "#!/bin/sh\nexit 9\n")
    with pytest.raises(error, match=words):
        batch(fn, **options)  # type: ignore[arg-type]
    assert [path.name for path in here.iterdir()] == ["sbatch"]


@pytest.mark.parametrize(("timeout_min", "notice_s"), [(5, 150), (60, 360)])
def test_what_slurm_gets(here: Path, timeout_min: int, notice_s: int) -> None:
    put(here, "sbatch", '#!/bin/sh\n[ "$1" = --parsable ] && for last; do :; done && cp "$last" script && echo 7\n')
    job = batch(abs, -3, nodes=2, timeout_min=timeout_min, folder="a b", options=["--qos=debug"])
    script = (here / "script").read_text()
    for line in ("--job-name=abs", "--nodes=2", f"--time={timeout_min}", f"--signal=B:USR2@{notice_s}", "--qos=debug"):
        assert f"#SBATCH {line}\n" in script
    assert f'#SBATCH "--output={here}/a b/%j_0_log.out"\n' in script
    assert (job.job_id, job.submission().result()) == ("7", 3)
    assert [path.name for path in (here / "a b").iterdir()] == ["7_submitted.pkl"]


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmMissing):
        monarch_hpc.batch(print)


def test_states_come_from_slurmctld_and_a_forgotten_job_has_ended(here: Path) -> None:
    put(here, "sbatch", "#!/bin/sh\nexit 9\n")
    put(here, "scontrol", SCONTROL)
    (here / "answer").write_text(SHOWN.format("RUNNING"))
    job = BatchJob[None](here, "7")
    assert job.state == "RUNNING" and not job.done()
    (here / "answer").write_text(SHOWN.format("CANCELLED"))
    # Submitit passes over a second look within a millisecond.
    wait_until("the end", lambda: job.done(force_check=True), 60.0, accept=bool)
    assert job.get_info()["ExitCode"] == "0:15"
    forgotten = BatchJob[None](here, "8")
    (here / "answer").unlink()
    wait_until("the end", lambda: forgotten.done(force_check=True), 60.0, accept=bool)
    assert forgotten.state == "FORGOTTEN"
    assert job.state == "CANCELLED"  # as it was last seen
