"""The requests of `alloc`, read from the script that it would submit."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from monarch_hpc.cli.alloc import _clock, _moment
from monarch_hpc.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["alloc", "--dry-run", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_slurms_own_letters_are_slurms_own_flags(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    found = flags(
        capsys, "dev", "-N", "4", "-t", "1:30:30", "-p", "p", "-q", "q", "-A", "a", "-C", "c", "-w", "n1", "-x", "n2",
        "--reservation", "r", "--gpus-per-node", "2", "--slurm", "--mem=0", "--slurm", "--exclusive=user",
    )  # fmt: skip
    directory = found[11].removeprefix("--output=").removesuffix("/slurm.out")
    assert Path(directory).parent == home / ".local/share/monarch-hpc"
    assert found == [
        f"--job-name=mh-{Path(directory).name}", "--nodes=4", "--time=91", "--partition=p", "--account=a", "--qos=q",
        "--constraint=c", "--reservation=r", "--gpus-per-node=2", "--ntasks-per-node=1", "--signal=B:USR2@360",
        f"--output={directory}/slurm.out", "--no-kill", "--no-requeue", "--nodelist=n1",
        "--exclude=n2", "--mem=0", "--exclusive=user",
    ]  # fmt: skip


def test_what_is_typed_wins_over_a_profile(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HPC_SLURM__JOB_FLAGS", "{nodes: 8, nodelist: n9}")
    assert "--nodes=8" in flags(capsys)
    found = flags(capsys, "-N", "2", "-w", "n1")
    assert [flag for flag in found if flag.startswith(("--nodes", "--nodelist"))] == ["--nodes=2", "--nodelist=n1"]


def test_as_json_the_script_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alloc", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["script"].startswith("#!/bin/bash\n#SBATCH --job-name=mh-")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-t", "abc"], 64, "'-t' / '--time': 'abc' is not a time limit"),
        (["-N", "zero"], 64, "'-N' / '--nodes': 'zero' is not a number of hosts"),
        (["-N", "0"], 64, "'0' is not a number of hosts; write 4, or 2-4"),
        (["-N", "2-"], 64, "'2-' is not a number of hosts"),
        (["--slurm", "mem=0"], 65, "not an option of sbatch"),
        (["--slurm", "--array=0-3"], 65, "an allocation is one job"),
        (["-N"], 64, "requires an argument"),
        (["a b"], 65, "must be 1 to 64 letters, digits"),
    ],
)
def test_a_wrong_wish_is_told_before_anything_is_done(
    capsys: pytest.CaptureFixture[str], home: Path, arguments: list[str], code: int, words: str
) -> None:
    assert main(["alloc", *arguments, "--dry-run"][: 1 + len(arguments) + (arguments != ["-N"])]) == code
    assert words in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_times_are_short() -> None:
    assert [_clock(seconds) for seconds in (0, 41.9, 600, 3661)] == ["0:00", "0:41", "10:00", "1:01:01"]
    today = time.strftime("%Y-%m-%d")
    assert _moment(f"{today}T13:37:17") == "13:37"
    assert _moment("2001-02-03T13:37:17") == "2001-02-03 13:37"
    assert _moment("") == "an unknown time"
