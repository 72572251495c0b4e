"""`monarch-hpc doctor` on this machine, whatever it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_hpc.cli.checks.findings import Severity


def doctor(tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch_hpc.cli", "doctor", *words],
        env={**os.environ, "PYTHONPATH": os.getcwd(), **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_finding_has_a_state_and_a_bad_one_advice(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    findings = {finding["what"]: finding for finding in document["findings"]}
    assert {"python", "slurm", "libucp", "ucx/shm", "ucx/rdma", "ucx/tcp", "tcp", "relay", "/dev/shm"} <= set(findings)
    for finding in findings.values():
        assert finding["found"]
        assert Severity(finding["state"]) is Severity.OK or finding["advice"]
    assert document["num_warnings"] == sum(finding["state"] == "warn" for finding in findings.values())
    assert {"tmp", "paths.shared", "quota", "munge", "cloudpickle"} <= set(findings)
    assert done.returncode == (2 if document["num_problems"] else 1 if document["num_warnings"] else 0)
    assert not list(tmp_path.iterdir())


def test_people_read_the_next_step_below_the_finding(tmp_path: Path) -> None:
    done = doctor(tmp_path, UCX_TLS="sm,tcp")
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("problem"))
    assert "UCX_TLS = 'sm,tcp' opens UCX over tcp" in lines[at]
    assert lines[at + 1].lstrip().startswith("-> name transports without tcp")
    assert "transports" in doctor(tmp_path, "--quiet", UCX_TLS="sm,tcp").stdout.splitlines()


def test_a_configuration_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", MONARCH_HPC_FABRIC__ORDER="[udp]")
    assert done.returncode == 2
    (wrong,) = (finding for finding in json.loads(done.stdout)["findings"] if finding["state"] == "problem")
    assert wrong["what"] == "configuration"
    assert wrong["found"].startswith("$MONARCH_HPC_FABRIC__ORDER: fabric.order = ['udp']")


def test_a_library_that_was_named_and_does_not_load_is_a_problem(tmp_path: Path) -> None:
    if "compiler" in doctor(tmp_path).stdout:
        pytest.skip("the extension is not built")
    done = doctor(tmp_path, "--json", MONARCH_LIBUCP=str(tmp_path / "libucp.so.0"))
    assert done.returncode == 2
    (wrong,) = (finding for finding in json.loads(done.stdout)["findings"] if finding["state"] == "problem")
    assert (wrong["what"], str(tmp_path) in wrong["found"]) == ("libucp", True)
