"""The dashboard of two real hosts, on a socket and on a port: what it serves, to whom, and what it leaves."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

import monarch_hpc
from monarch_hpc import Actor, HostMesh, ProcMesh, current_rank, endpoint
from monarch_hpc.agent.procs import stack_dumps
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle
from tests.system.support.dashboard import PATIENCE_S, Dashboard, opened

HOSTILE = "</script><script>document.title='owned'</script>\x1b]0;owned\x07"


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> int:
        print(f"a line {HOSTILE}", flush=True)
        monarch_hpc.log_metric("loss", 1 / (number + 1) + current_rank().rank, step=number)
        monarch_hpc.log_metric(HOSTILE, float("nan"), step=number, tag=HOSTILE)
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError(HOSTILE)

    @endpoint
    def doze(self) -> None:
        time.sleep(600)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def pids(hosts: HostMesh) -> Iterator[list[int]]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        yield work(procs)


def work(procs: ProcMesh) -> list[int]:
    trainers = procs.spawn("trainer", Trainer)
    for number in range(3):
        found = trainers.step.call(number).get(PATIENCE_S)
    with pytest.raises(Exception, match="owned"):
        trainers.slice(hosts=0, gpus=0).fail.call_one().get(PATIENCE_S)
    procs.slice(hosts=1).spawn("sleeper", Trainer).doze.broadcast()
    procs.slice(hosts=0, gpus=0).spawn(HOSTILE, Trainer).doze.broadcast()
    return [pid for _, pid in found.items()]


@pytest.fixture(scope="module")
def dashboard(pids: list[int]) -> Iterator[Dashboard]:
    with opened("--every", "1s") as dashboard:
        dashboard.log_in()
        yield dashboard


def event(dashboard: Dashboard, name: str, accept: Callable[[dict[str, object]], object]) -> dict[str, object]:
    for found, document in dashboard.events():
        if found == name and accept(document):
            return document
    raise AssertionError("the events ended")


def test_the_socket_is_private_and_the_line_for_ssh_is_printed(dashboard: Dashboard) -> None:
    path = Path(str(dashboard.document["socket"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert str(dashboard.document["ssh"]).startswith(f"ssh -N -L 8384:{path} ")
    assert dashboard.url.startswith("http://localhost:8384/#token=") and len(dashboard.token) >= 32
    listening = Path("/proc", str(dashboard.document["pid"]), "net/tcp")
    inodes = {line.split()[9] for line in listening.read_text().splitlines()[1:] if line.split()[3] == "0A"}
    fds = [os.readlink(one) for one in Path("/proc", str(dashboard.document["pid"]), "fd").iterdir()]
    assert not {f"socket:[{inode}]" for inode in inodes} & set(fds)


def test_the_ranks_and_who_waits_for_whom(dashboard: Dashboard) -> None:
    def sleeping(document: dict[str, object]) -> bool:
        actors = document["actors"]
        assert isinstance(actors, list)
        return len([one for one in actors if one["endpoint"] == "doze"]) == 3

    document = event(dashboard, "picture", sleeping)
    procs, actors = document["procs"], document["actors"]
    assert isinstance(procs, list)
    assert isinstance(actors, list)
    assert [one[3:5] for one in procs if one[2] >= 0] == [[0, "local0"], [1, "local0"], [2, "local1"], [3, "local1"]]
    assert [one[6] for one in procs if one[2] >= 0] == ["running", "idle", "running", "running"]
    assert {one["caller"] for one in actors if one["endpoint"] == "doze"} == {f"program on {os.uname().nodename}"}
    assert any(one["actor"].startswith("</script><script>") and r"\x1b]0;owned\x07" in one["actor"] for one in actors)


def test_metrics_and_failures(dashboard: Dashboard) -> None:
    document = event(dashboard, "history", lambda one: one["failures"])
    charts, failures = document["charts"], document["failures"]
    assert isinstance(charts, list)
    assert isinstance(failures, list)
    loss = next(one for one in charts if one["name"] == "loss")
    assert [label for label, _ in loss["lines"]] == ["r00", "r01", "r02", "r03"]
    assert loss["lines"][2][1] == [[0, 3], [1, 2.5], [2, 2.3333]]
    hostile = next(one for one in charts if one["name"] != "loss")
    assert hostile["odd"] == 12 and "\x1b" not in json.dumps(document) and r"\\x1b" in json.dumps(hostile["name"])
    assert [(one["who"], one["what"]) for one in failures] == [("trainer[0].fail", "ValueError")]
    assert "test_dash.py:" in failures[0]["line"]


def place(dashboard: Dashboard, rank: int) -> str:
    procs = dashboard.picture()["procs"]
    assert isinstance(procs, list)
    one = next(one for one in procs if one[2] >= 0 and one[3] == rank)
    names = ("allocation", "run", "mesh", "rank", "host", "pid")
    return urlencode(dict(zip(names, one, strict=False)))


def test_output_and_stacks_of_a_rank(dashboard: Dashboard) -> None:
    where = place(dashboard, 2)

    def output() -> str:
        status, _, body = dashboard.request("GET", f"/api/logs?{where}")
        assert status == 200
        return str(json.loads(body)["text"])

    text = wait_until("its output", output, PATIENCE_S, accept=lambda text: text.count("a line") == 3)
    assert "\x1b" not in text and r"\x1b]0;owned\x07" in text and "<script>" in text
    if stack_dumps._find_py_spy():
        _, _, body = dashboard.request("GET", f"/api/stack?{where}")
        assert "Trainer.doze (test_dash.py:" in json.loads(body)["text"]
    for wrong in ("run=../../..&allocation=x", "", "rank=1", where.replace("run=", "run=%2e%2e%2f")):
        _, _, body = dashboard.request("GET", f"/api/logs?{wrong}")
        assert "nothing that is kept" in json.loads(body)["text"]


def test_questions_in_sql(dashboard: Dashboard) -> None:
    pytest.importorskip("datafusion")
    status, _, body = dashboard.request("POST", "/api/query", {"sql": "SELECT rank, host FROM procs WHERE mesh >= 0"})
    answer = json.loads(body)
    assert (status, answer["columns"], answer["num_rows"], answer["missing"]) == (200, ["rank", "host"], 4, [])
    status, _, body = dashboard.request("POST", "/api/query", {"ask": "loss-spread"})
    assert status == 200 and json.loads(body)["num_rows"] >= 3
    for wrong, words in (
        ({"sql": "SELECT nothing FROM procs"}, "nothing"),
        ({"sql": "DROP TABLE procs"}, "not supported"),
        ({"sql": "SELECT * FROM '/etc/passwd'"}, "passwd"),
        ({"ask": "../secret"}, "there is no question"),
        ({}, "there is no question"),
        ([], "there is no question"),
    ):
        status, _, body = dashboard.request("POST", "/api/query", wrong)
        assert status == 400 and words in json.loads(body)["error"]


def test_requests_that_are_refused(dashboard: Dashboard) -> None:
    for method, target, body, headers, wanted in (
        ("GET", "/api/events", None, {"Cookie": ""}, 401),
        ("POST", "/session", {"token": "wrong"}, {}, 401),
        ("GET", "/api/events", None, {"Host": "evil.example"}, 403),
        ("POST", "/api/query", {"sql": "SELECT 1"}, {"Origin": "https://evil.example"}, 403),
        ("DELETE", "/api/events", None, {}, 405),
        ("GET", "/api/query", None, {}, 405),
        ("BREW", "/", None, {}, 501),
        ("POST", "/api/query", None, {"Content-Type": "application/json", "Content-Length": "70000"}, 413),
        ("POST", "/api/query", {"sql": "SELECT 1"}, {"Content-Type": "text/plain"}, 415),
        ("GET", "/page/../dash.py", None, {}, 404),
    ):
        status, head, text = dashboard.request(method, target, body, headers)
        assert (method, target[:40], status) == (method, target[:40], wanted)
        assert head["Content-Type"] == "application/json" and set(json.loads(text)) == {"error"}
        assert "default-src 'none'" in head["Content-Security-Policy"] and "evil" not in text.decode().replace(
            "host evil.example", ""
        )
    status, head, text = dashboard.request("GET", "/", headers={"Cookie": ""})
    assert status == 200 and b"dash.js" in text and head["X-Content-Type-Options"] == "nosniff"
    status, _, text = dashboard.request("GET", "/a/prefix/dash.js")
    assert status == 200 and b"EventSource" in text


def test_a_port_is_on_loopback_and_asks_for_the_token_too(pids: list[int]) -> None:
    with opened("--port", "0") as dashboard:
        assert dashboard.url.startswith(f"http://127.0.0.1:{dashboard.document['port']}/#token=")
        assert dashboard.request("GET", "/api/events")[0] == 401
        dashboard.log_in()
        assert len(dashboard.picture()["procs"]) == 5  # type: ignore[arg-type]
        command = [sys.executable, "-m", "monarch_hpc.cli", "dash", os.environ[DIRECTORY_VARIABLE], "--port"]
        again = subprocess.run([*command, str(dashboard.document["port"])], capture_output=True, text=True, check=False)
        assert again.returncode == 65 and "Address already in use" in again.stderr


def test_a_chosen_socket(pids: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    path = folder / "dash.sock"
    with opened("--socket", str(path)) as dashboard:
        dashboard.log_in()
        assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--socket", str(path)]) == 65
        assert "is in use by another program" in capsys.readouterr().err
        dashboard.process.kill()  # leaves the socket behind, which the next one replaces
        dashboard.process.wait(PATIENCE_S)
        with opened("--socket", str(path)) as second:
            second.log_in()
        dashboard.process.returncode = 0
    folder.chmod(0o755)
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--socket", str(path)]) == 65
    assert "others can enter its folder" in capsys.readouterr().err
    folder.chmod(0o700)
    path.write_text("a file")
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--socket", str(path)]) == 65
    assert "is a file already" in capsys.readouterr().err and path.read_text() == "a file"


def test_one_file(pids: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.html"
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--save", str(file)]) == 0
    assert f"{file}: 5 processes" in capsys.readouterr().out
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "http://" not in text.replace("http://www.w3.org", "") and text.count("<script") == 2
    assert "\x1b" not in text and "\\u003cscript>document.title" in text
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--save", str(file), "--port", "0"]) == 64
    capsys.readouterr()
    assert main(["dash", os.environ[DIRECTORY_VARIABLE], "--save", str(file), "--run", "nosuch"]) == 64
    assert "'--run': there is no run nosuch; there are: feedbeef" in capsys.readouterr().err
    assert file.read_text() == text
