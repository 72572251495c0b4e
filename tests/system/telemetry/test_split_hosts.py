"""Questions in SQL that two hosts answer in parts, also when one is frozen; and tables of members."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, ProcMesh, endpoint, telemetry
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.errors import QueryError
from monarch_hpc.core.machine.procfs import each_pid, read_environ, read_resident_bytes, read_stat
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE
from monarch_hpc.wire.tables.procs import PROCS
from tests.system.support.controlling import controlled, keep_channels, settle

pytest.importorskip("datafusion")
pytest.importorskip("sqlglot")

_PATIENCE_S = 60.0
_HELPER, _ENGINE = b"monarch_hpc.telemetry.scribe", b"monarch_hpc.telemetry.sql.engine"

NUM_KILLS = int(os.environ.get("NUM_KILLS", "20"))
"""More of them search longer."""


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> None:
        monarch_hpc.log_metric("loss", 1 / (number + 1), step=number)

    @endpoint
    def speak(self, line: str) -> None:
        print(line, flush=True)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with controlled(load().config, 2) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        keep_channels()
        yield procs


def marks_of_procs() -> set[bytes]:
    """What the environments of all processes of the allocation contain."""
    answer = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), PROCS, _PATIENCE_S)
    assert answer is not None
    own = {name for row in answer.rows if row.mesh >= 0 for name in (read_environ(row.pid) or b"").split(b"\0")}
    return {name for name in own if name.startswith(f"{COOKIE}=".encode())}


def pids_of(marks: set[bytes], module: bytes) -> list[int]:
    """The processes with some marks that run a module, and those that they have forked."""
    found = []
    for pid in each_pid():
        with contextlib.suppress(OSError):  # it has ended
            if marks.issubset((read_environ(pid) or b"").split(b"\0")):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found += [pid] if module in argv else []
    return found


def pid_of(module: bytes, host: str) -> int:
    """The process of a host that runs a module."""
    marks = marks_of_procs() | {f"{HOST_COOKIE}={host}".encode()}
    found = pids_of(marks, module)
    parents = {pid: 0 if stat is None else stat.parent for pid in found for stat in (read_stat(pid),)}
    (pid,) = (pid for pid in found if parents[pid] not in parents)  # not the worker of an engine
    return pid


def test_hosts_answer_their_part_and_a_frozen_one_is_named(procs: ProcMesh) -> None:
    trainers: ActorMesh[Trainer] = procs.spawn("split", Trainer)
    for number in range(3):
        trainers.step.call(number).get(_PATIENCE_S)
    grouped = "SELECT host, count(*) AS num, max(value) AS most FROM metrics WHERE actor = 'split' GROUP BY host"
    expected = [("local0", 3, 1.0), ("local1", 3, 1.0)]
    for sql in (grouped, f"{grouped} ORDER BY host", grouped.replace("count(*)", "count(DISTINCT step)")):
        answer = telemetry.query(sql, timeout_s=_PATIENCE_S)
        assert (sorted(answer.rows), answer.missing_hosts, answer.cut, answer.dropped) == (expected, [], [], 0)
    joined = "SELECT count(*) FROM metrics a JOIN metrics b USING (step) WHERE a.actor = 'split' AND b.actor = 'split'"
    assert telemetry.query(joined, timeout_s=_PATIENCE_S).rows == [(12,)]
    on_hosts = "SELECT a.host, count(*) AS num FROM metrics a JOIN handled b ON a.host = b.host AND a.pid = b.pid "
    on_hosts += "WHERE a.actor = 'split' AND b.actor = 'split' AND b.endpoint = 'step' GROUP BY a.host"
    answer = telemetry.query(on_hosts, timeout_s=_PATIENCE_S)
    assert (sorted(answer.rows), answer.missing_hosts) == ([("local0", 9), ("local1", 9)], [])
    with_procs = "SELECT p.rank, p.state, count(*) AS num, max(b.value) FROM procs p JOIN metrics b USING (host, pid) "
    with_procs += "WHERE b.actor = 'split' GROUP BY p.rank, p.state"
    answer = telemetry.query(with_procs, timeout_s=_PATIENCE_S)
    assert (sorted(answer.rows), answer.missing_hosts) == ([(0, "ready", 3, 1.0), (1, "ready", 3, 1.0)], [])
    frozen = pid_of(_HELPER, "1")
    os.kill(frozen, signal.SIGSTOP)
    try:
        answer = telemetry.query(grouped, timeout_s=5.0)
        assert (answer.rows, len(answer.missing_hosts)) == (expected[:1], 1)
    finally:
        os.kill(frozen, signal.SIGCONT)
    engine = pid_of(_ENGINE, "1")
    os.kill(engine, signal.SIGKILL)
    wait_until("the engine's end", lambda: read_environ(engine), accept=lambda found: not found, timeout_s=_PATIENCE_S)
    assert sorted(telemetry.query(grouped, timeout_s=_PATIENCE_S).rows) == expected
    for module in (_HELPER, _ENGINE):
        num_bytes = read_resident_bytes(pid_of(module, "1"))
        print(module.decode(), num_bytes >> 20, "MiB")
        assert num_bytes < 250 << 20


def test_the_command_needs_no_engine(procs: ProcMesh, tmp_path: Path) -> None:
    trainers: ActorMesh[Trainer] = procs.spawn("plain", Trainer)
    trainers.step.call(4).get(_PATIENCE_S)
    sql = "SELECT host, step, max(value) AS most, CAST('NaN' AS DOUBLE) AS no FROM metrics WHERE actor = 'plain' "
    sql += "GROUP BY host, step ORDER BY host"
    without = "import sys; sys.modules.update(dict.fromkeys(('datafusion', 'numpy', 'pyarrow', 'sqlglot')))\n"

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        argv = ["query", *options, "--allocation", os.environ[DIRECTORY_VARIABLE], "--deadline", "60s"]
        code = f"{without}from monarch_hpc.cli.main import main; sys.exit(main({argv!r}))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    found = run(sql, "--json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["columns"] == ["host", "step", "most", "no"]
    assert document["rows"] == [["local0", 4, 0.2, None], ["local1", 4, 0.2, None]]
    assert run(sql, "--format", "csv").stdout.splitlines()[1] == "local0,4,0.2,nan"
    explained = json.loads(run(sql, "--explain", "--json").stdout)
    assert explained["rule"] == "partial" and explained["tables"] == ["metrics"]
    path = tmp_path / "answer.parquet"
    assert run(sql, "--format", "parquet", "-o", str(path)).returncode == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(path).column("host").to_pylist() == ["local0", "local1"]
    wrong = run("SELECT valu FROM metrics")
    assert wrong.returncode == 65
    assert "there is no column 'valu' (line 1, column 8): did you mean value?" in wrong.stderr


@pytest.mark.slow  # each engine that is killed starts again
def test_kills_in_the_middle_of_questions_bring_no_wrong_row_and_no_hang(procs: ProcMesh) -> None:
    trainers: ActorMesh[Trainer] = procs.spawn("killed", Trainer)
    for number in range(5):
        trainers.step.call(number).get(_PATIENCE_S)
    sql = "SELECT host, count(*) AS num, max(value) AS most FROM metrics WHERE actor = 'killed' GROUP BY host"
    expected = {"local0": (5, 1.0), "local1": (5, 1.0)}
    assert {row[0]: row[1:] for row in telemetry.query(sql, timeout_s=_PATIENCE_S).rows} == expected
    marks, chance = marks_of_procs(), random.Random(NUM_KILLS)
    num_whole, problems = 0, []
    with ThreadPoolExecutor(1) as pool:
        for number in range(NUM_KILLS):
            asked = pool.submit(telemetry.query, sql, timeout_s=_PATIENCE_S)
            module = _HELPER if number % 25 == 7 else _ENGINE
            for pid in chance.sample(pids := pids_of(marks, module), min(len(pids), 1)):
                with contextlib.suppress(ProcessLookupError):  # a question that is answered
                    os.kill(pid, signal.SIGKILL)
            try:
                answer = asked.result(3 * _PATIENCE_S)
            except QueryError as error:  # that of the head's host was killed twice in one question
                problems.append(str(error))
                continue
            found = {row[0]: row[1:] for row in answer.rows}
            missing = {name.removeprefix("host ") for name in answer.missing_hosts}
            assert all(expected[str(host)] == rest for host, rest in found.items()), found
            assert {*found, *missing} == expected.keys() and not missing.intersection(found)
            num_whole += not missing
    assert all("engine" in one or "ended its process" in one for one in problems), problems
    assert num_whole > NUM_KILLS // 4, (num_whole, problems)
    answer = telemetry.query(sql, timeout_s=_PATIENCE_S)
    assert {row[0]: row[1:] for row in answer.rows} == expected and not answer.missing_hosts


def test_actors_meshes_endpoints_waits_failures_and_logs_are_tables(procs: ProcMesh) -> None:
    trainers: ActorMesh[Trainer] = procs.spawn("member", Trainer)
    trainers.step.call(1).get(_PATIENCE_S)
    trainers.speak.call("hear hear").get(_PATIENCE_S)

    def ask(sql: str) -> list[tuple[object, ...]]:
        answer = telemetry.query(sql, timeout_s=_PATIENCE_S)
        assert not answer.missing_hosts
        return answer.rows

    assert ask("SELECT actor_state, count(*) FROM actors WHERE actor = 'member' GROUP BY 1") == [("ready", 2)]
    assert ask("SELECT members, ready, hosts FROM meshes WHERE name = 'member'") == [(2, 2, 2)]
    counted = "SELECT sum(calls), sum(failed) FROM endpoints WHERE actor = 'member' AND endpoint = 'step'"
    assert ask(counted) == [(2, 0)]
    assert ask("SELECT count(*) FROM waits WHERE calls > 0") == [(0,)]
    ask("SELECT what, cause FROM failures ORDER BY t")
    said = (
        "SELECT count(*), count(DISTINCT rank) FROM logs WHERE line LIKE '%hear hear%' AND t > TIMESTAMP '2000-01-01'"
    )
    wait_until("the output in the files", lambda: ask(said), accept=lambda found: found == [(2, 2)])
