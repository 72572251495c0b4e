from __future__ import annotations

import json

import pytest

from monarch_hpc.cli.main import main
from monarch_hpc.config.schema import known_keys


def test_show_prints_every_key_with_its_value_and_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_HPC_SLURM__QOS", "debug")
    assert main(["config", "show", "--origin"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["KEY"] == ["VALUE", "ORIGIN"]
    assert lines["slurm.qos"] == ["debug", "$MONARCH_HPC_SLURM__QOS"]
    assert lines["slurm.time_min"][0] == "60"
    assert lines["slurm.time_min"][1].startswith("configs/default.yaml:")
    for key in known_keys():
        assert key in lines or any(name.startswith(f"{key}.") for name in lines), key


def test_show_as_json_is_one_object_with_the_origins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--json", "--origin"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["config"]["slurm"]["job_flags"]["no-kill"] is True
    assert document["origin"]["slurm.job_flags.no-kill"].startswith("configs/default.yaml:")
    assert main(["config", "show", "--json"]) == 0
    assert "origin" not in json.loads(capsys.readouterr().out)


def test_show_for_scripts_is_key_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "slurm.partition=null" in lines
    assert "liveness.dead_s=15" in lines


def test_a_wrong_configuration_is_an_error_with_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_HPC_SLURM__PARTITON", "x")
    assert main(["config", "show"]) == 65
    error = capsys.readouterr().err
    assert error.startswith(
        "monarch-hpc: error: $MONARCH_HPC_SLURM__PARTITON: unknown key 'slurm.partiton'; did you mean"
    )
