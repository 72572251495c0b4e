"""The queue on a machine that has Slurm's commands, but no cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_hpc.cli.main import main

_REFUSED = "squeue: fatal: Could not establish a configuration source"


def test_without_a_cluster_the_next_step_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo", "srun"):
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\necho '{_REFUSED}' >&2\nexit 1\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("MONARCH_HPC_PATHS__STATE", str(tmp_path / "state"))
    assert main(["queue"]) == 71
    err = capsys.readouterr().err
    assert err.startswith(f"monarch-hpc: error: squeue refused (exit status 1): {_REFUSED}\n")
    assert "load the site's Slurm module or set SLURM_CONF" in err and "'monarch-hpc run --local 2 SCRIPT'" in err
