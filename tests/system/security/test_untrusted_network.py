"""On an untrusted network, nothing starts that would open UCX over tcp (NEG-19)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
os.environ.update([sys.argv[1].split("=")])
import monarch_hpc
print("begins", flush=True)
monarch_hpc.hosts().spawn_procs()
print("got hosts", flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(program: Path, change: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which itself changes its environment before it asks for hosts."""
    return subprocess.run(
        [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "1", str(program), change],
        env={**os.environ, "XDG_STATE_HOME": str(program.parent / "state"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("transports", ["tcp", "all", "posix,tcp", "^rc", "\\tcp"])
def test_a_run_that_would_open_tcp_is_refused_before_it_begins(program: Path, transports: str) -> None:
    done = run(program, "A=b", UCX_TLS=transports)
    assert done.returncode == 65
    assert "UCX_TLS" in done.stderr and "fabric.trusted is false" in done.stderr
    assert "begins" not in done.stdout


@pytest.mark.slow
def test_a_program_that_asks_for_tcp_itself_gets_no_hosts(program: Path) -> None:
    done = run(program, "UCX_TLS=tcp")
    assert "begins" in done.stdout and "got hosts" not in done.stdout
    assert done.returncode != 0
    assert "ConfigError" in done.stderr and "fabric.trusted is false" in done.stderr


@pytest.mark.slow
def test_other_transports_and_trusted_networks_are_nobodys_business(program: Path) -> None:
    for environment in ({"UCX_TLS": "posix,self"}, {"UCX_TLS": "tcp,self", "MONARCH_HPC_FABRIC__TRUSTED": "true"}):
        done = run(program, "A=b", **environment)
        assert done.returncode == 0, done.stderr
        assert "got hosts" in done.stdout
