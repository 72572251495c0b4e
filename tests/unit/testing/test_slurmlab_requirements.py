"""Missing requirements of the lab: each is named, with the package to install or the person to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.testing.slurmlab.__main__ import main
from monarch_hpc.testing.slurmlab.requirements import find_missing_packages, find_problems


def found(command: str) -> str:
    return f"/usr/bin/{command}"


def no_munge(command: str) -> str | None:
    return None if command in ("munged", "slurmd", "slurmctld") else found(command)


def test_missing_commands_are_named_with_their_packages(tmp_path: Path) -> None:
    assert find_missing_packages(no_munge) == ("munge", "slurm-wlm")
    assert find_problems(no_munge, 0, lambda: "", tmp_path) == (
        "missing commands: munged, slurmctld, slurmd; ask the administrator to run 'apt-get install munge slurm-wlm'",
    )


def test_other_obstacles_are_told(tmp_path: Path) -> None:
    assert find_problems(found, 0, lambda: "", tmp_path) == ()
    (no_root,) = find_problems(found, 1000, lambda: "", tmp_path)
    assert "not root" in no_root
    (no_folder,) = find_problems(found, 0, lambda: "", tmp_path / "slurm")
    assert "slurm is missing" in no_folder
    (no_namespaces,) = find_problems(found, 0, lambda: "Operation not permitted", tmp_path)
    assert "Operation not permitted" in no_namespaces
    assert "--privileged" in no_namespaces


def test_a_command_without_a_lab_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for verb in ("down", "status"):
        assert main([verb]) == 1
        assert str(tmp_path / "monarch-hpc-labs") in capsys.readouterr().err
    assert main(["down", "--all"]) == 0
