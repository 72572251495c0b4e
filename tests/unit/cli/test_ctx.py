from __future__ import annotations

import json
from pathlib import Path

import pytest

from monarch_hpc.cli.main import main
from monarch_hpc.slurm.record import AllocationRecord, Ended, current_owner
from monarch_hpc.slurm.registry import Registry


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, AllocationRecord]:
    """Two live allocations, `a` and `b`, in the registry of the commands."""
    monkeypatch.setenv("MONARCH_HPC_PATHS__STATE", str(tmp_path / "state"))
    registry = Registry(tmp_path / "state")
    found = {}
    for number, name in enumerate("ab"):
        allocation = f"{number:08x}" + "0" * 24
        found[name] = AllocationRecord(allocation, name, tmp_path / name, "2", current_owner(), 1000.0, job_id=number)
        registry.create(found[name])
    return found


def test_commands_use_the_chosen_one_and_never_silently_another(
    records: dict[str, AllocationRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> dict[str, object]:
        main([*arguments, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert isinstance(told, dict)
        return told

    assert "several allocations live" in str(run("ctx", "show")["error"])
    assert run("ctx", "use", "b")["current"] == "b"
    assert run("ctx", "show")["used"] == "b"
    Registry(tmp_path / "state").close(records["b"], Ended("COMPLETED", "", "scontrol", 1001.0))
    assert "the current allocation has ended (live: a)" in str(run("ctx", "show")["error"])
    assert "has ended" in str(run("ctx", "use", "b")["error"])
    assert run("ctx", "use", "--clear")["current"] is None
    assert run("ctx", "show")["used"] == "a"
    assert "name an allocation, or give --clear" in str(run("ctx", "use")["error"])
