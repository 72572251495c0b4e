from __future__ import annotations

import json
from pathlib import Path

import pytest

from monarch_hpc.agent.resources import health


def test_a_sound_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(health, "_LITTLE_BYTES", 1)  # this machine's folders may be nearly full
    monkeypatch.setenv("PATH", str(tmp_path))
    assert health.main([str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == {"shared": "", "tmp": "", "shm": "", "memory": "", "gpus": ""}
    assert list(tmp_path.iterdir()) == []


def test_each_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Unable to determine the device handle' >&2\nexit 15\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(health, "_LITTLE_BYTES", 1 << 62)
    found = health.examine(tmp_path / "gone")
    assert "No such file" in found["shared"]
    assert "left" in found["shm"] and "of memory are left" in found["memory"]
    assert found["gpus"] == "Unable to determine the device handle"


def test_a_gpu_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(health, "_GPU_S", 0.05)
    assert health.examine(tmp_path)["gpus"].startswith("nvidia-smi did not answer in")
