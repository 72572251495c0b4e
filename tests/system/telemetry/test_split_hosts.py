"""Questions in SQL that two hosts answer in parts, also when one is frozen; and tables of members."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, ProcMesh, endpoint, telemetry
from monarch_hpc.attach.attach import query_rows
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.machine.procfs import each_pid, read_environ, read_resident_bytes
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE
from monarch_hpc.wire.tables.procs import PROCS
from tests.system.support.controlling import controlled, settle

pytest.importorskip("datafusion")
pytest.importorskip("sqlglot")

_PATIENCE_S = 60.0


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
        yield procs


def pid_of(module: bytes, host: str) -> int:
    """The process of a host that runs a module."""
    answer = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), PROCS, _PATIENCE_S)
    assert answer is not None
    own = {name for row in answer.rows if row.mesh >= 0 for name in (read_environ(row.pid) or b"").split(b"\0")}
    marks = {name for name in own if name.startswith(f"{COOKIE}=".encode())} | {f"{HOST_COOKIE}={host}".encode()}
    (found,) = (
        pid
        for pid in each_pid()
        if marks.issubset((read_environ(pid) or b"").split(b"\0"))
        and module in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    )
    return found


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
    frozen = pid_of(b"monarch_hpc.telemetry.scribe", "1")
    os.kill(frozen, signal.SIGSTOP)
    try:
        answer = telemetry.query(grouped, timeout_s=5.0)
        assert (answer.rows, len(answer.missing_hosts)) == (expected[:1], 1)
    finally:
        os.kill(frozen, signal.SIGCONT)
    engine = pid_of(b"monarch_hpc.telemetry.sql.leaf", "1")
    os.kill(engine, signal.SIGKILL)
    wait_until("the engine's end", lambda: read_environ(engine), accept=lambda found: not found, timeout_s=_PATIENCE_S)
    assert sorted(telemetry.query(grouped, timeout_s=_PATIENCE_S).rows) == expected
    for module in (b"monarch_hpc.telemetry.scribe", b"monarch_hpc.telemetry.sql.leaf"):
        num_bytes = read_resident_bytes(pid_of(module, "1"))
        print(module.decode(), num_bytes >> 20, "MiB")
        assert num_bytes < 250 << 20


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
