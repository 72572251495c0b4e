"""The checks of `sbatch` before Slurm is asked, which are those of `alloc`."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.cli.main import main
from monarch_hpc.slurm import Exclusions


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def test_what_the_site_demands_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HPC_SLURM__REQUIRED", "[account, qos]")
    assert main(["sbatch", "--dry-run", "-A", "a", "train.py"]) == 65
    assert "jobs here need --qos (-q)" in capsys.readouterr().err
    assert main(["sbatch", "--dry-run", "-A", "a", "-q", "q", "train.py"]) == 0


def test_a_time_above_the_sites_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HPC_SLURM__TIME_BY_NODES", "{1: 60}")
    assert main(["sbatch", "--output-script", "job.sh", "-t", "2h", "train.py"]) == 0
    assert "generic allows 60 min for 1 hosts; Slurm may refuse --time=120" in capsys.readouterr().err


def test_bad_hosts_are_left_out_and_named(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    Exclusions(home / ".local" / "state" / "monarch-hpc").add("n7", "slow", 1.0)
    assert main(["sbatch", "--dry-run", "--slurm", "--exclude=n3", "train.py"]) == 0
    printed = capsys.readouterr()
    assert '#SBATCH "--exclude=n[3,7]"' in printed.out
    assert "drained   n7: slow" in printed.err
