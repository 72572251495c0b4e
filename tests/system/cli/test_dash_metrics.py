"""Metrics for Prometheus of two real hosts: over the dashboard's port and socket, and in a file."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import Actor, HostMesh, ProcMesh, endpoint
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.testing import wait_until
from tests.child import child
from tests.system.support.controlling import controlled, settle
from tests.system.support.dashboard import PATIENCE_S, opened

HOSTILE = 'a"} 1\n# HELP \x1b[31m'


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> int:
        return number

    @endpoint
    def fail(self) -> None:
        raise ValueError


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs() as procs:
        settle(procs)
        trainers = procs.spawn("trainer", Trainer)
        for number in range(3):
            trainers.step.call(number).get(PATIENCE_S)
        with pytest.raises(Exception, match="ValueError"):
            trainers.slice(hosts=1).fail.call_one().get(PATIENCE_S)
        procs.spawn(HOSTILE, Trainer).step.call(0).get(PATIENCE_S)
        yield procs


def check(text: str) -> None:
    """Check the figures of the procs."""
    assert "\x1b" not in text and all(re.match(r"# (HELP|TYPE) |monarch_hpc_\w+\{", line) for line in text.splitlines())
    steps = re.findall(r'endpoint_calls_total\{.*rank="(\d)",host="(\w+)".*"trainer",endpoint="step"\} (\d+)', text)
    assert steps == [("0", "local0", "3"), ("1", "local1", "3")]
    assert re.findall(r'endpoint_failed_total\{.*rank="(\d)".*endpoint="fail"\} (\d+)', text) == [("1", "1")]
    hostile = re.escape(r'actor="a\"} 1\\n# HELP \\x1b[31m",endpoint="step"} 1')
    assert len(re.findall(rf"endpoint_calls_total\{{.*{hostile}\n", text)) == 2
    memory = re.findall(r'proc_resident_memory_bytes\{.*mesh="\d+",rank="(\d)".* (\d+)\n', text)
    assert [rank for rank, _ in memory] == ["0", "1"] and all(int(number) > 1 << 20 for _, number in memory)
    assert re.search(r'hosts\{allocation="[^"]+",state="alive"\} 2\n', text)
    assert sorted(re.findall(r'host_memory_available_bytes\{.*host="(\w+)"\} \d+\n', text)) == ["local0", "local1"]


def test_a_collector_reads_them_with_the_token_of_a_file(procs: ProcMesh, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with opened("--port", "0", "--token-file", str(file)) as dashboard:
        assert dashboard.token == file.read_text() and stat.S_IMODE(file.stat().st_mode) == 0o600
        assert dashboard.request("GET", "/metrics")[0] == 401
        assert dashboard.request("GET", "/metrics", headers={"Authorization": "Bearer wrong"})[0] == 401
        bearer = {"Authorization": f"Bearer {dashboard.token}"}
        assert dashboard.request("GET", "/api/events", headers=bearer)[0] == 401
        assert dashboard.request("GET", "/metrics", headers={**bearer, "Host": "evil.example"})[0] == 403
        status, head, body = dashboard.request("GET", "/metrics", headers=bearer)
        assert (status, head["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        check(body.decode())
        dashboard.log_in()
        assert dashboard.request("GET", "/metrics")[0] == 200
    with opened("--token-file", str(file)) as again:
        assert again.token == file.read_text()


def test_a_token_file_that_others_can_read_or_that_is_none(
    procs: ProcMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    for text, mode, words in (
        ("short", 0o600, "holds no token"),
        ("with spaces and \nlines in it", 0o600, "holds no token"),
        ("a-good-token-of-24-chars", 0o644, "open to other users"),
    ):
        file.write_text(text)
        file.chmod(mode)
        assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--token-file", str(file)]) == 65
        assert words in capsys.readouterr().err and file.read_text() == text


def test_a_file_for_the_collector_of_a_host(
    procs: ProcMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.prom"
    command = [sys.executable, "-m", "monarch_hpc.cli", "dash", os.environ[DIRECTORY_VARIABLE], "--textfile", str(file)]
    process = subprocess.Popen([*command, "--every", "1s", "--until-eof"], stdin=subprocess.PIPE, umask=0o027)
    with child(process):
        wait_until("the file", file.exists, PATIENCE_S)
        check(file.read_text())
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        first = file.stat().st_ino
        wait_until("the next one", lambda: file.stat().st_ino != first, PATIENCE_S)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
        assert not list(tmp_path.iterdir())  # nothing old is left to be taken for new
    file.mkdir()
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--textfile", str(file / "no" / "a.prom")]) == 65
    assert "cannot be written: No such file" in capsys.readouterr().err
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--textfile", str(file), "--port", "0"]) == 64
