"""Questions to hosts whose agents ask in two steps: procs that die, agents that hang, answers that are too large."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.attach.tables.rows import TableAnswer, query_rows
from monarch_hpc.config.load import load
from monarch_hpc.config.schema import Config
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.frames import Frame
from monarch_hpc.wire.tables.procs import PROCS, ProcRow
from tests.system.support.agent_client import ENTRY, Client, standin_path

_NUM_HOSTS = 5
_ROW_BYTES = 60
_ASK_S = 60.0
# Whoever asks waits that long for an agent that hangs; the others must answer before.
_HANGING_S = 3.0


class Program(Client):
    """A program that answers questions."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Store the message; answer a question with no rows."""
        super().on_frame(channel, frame)
        message = self.messages[-1]
        if isinstance(message, Ask):
            self.send(Rows(message.ticket, [], [], []))


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Config:
    """A tree of fan-out two: the agent of host 0 asks hosts 1 and 3, these ask hosts 2 and 4."""
    # An agent that hangs is not lost, however long the others take.
    settings = {"transport.cast_fanout": 2, "procs.stop_s": 1.0, "agent.grace_s": 1.0, "liveness.dead_s": 600.0}
    return load({**settings, **getattr(request, "param", {})}).config


@pytest.fixture
def directory(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", standin_path(tmp_path))
    with open_local(_NUM_HOSTS, config, tmp_path / "allocation", entry=ENTRY) as where:
        yield where


def ask(directory: Path, timeout_s: float = _ASK_S, **where: object) -> TableAnswer[ProcRow]:
    answer = query_rows(directory, PROCS, timeout_s, where)
    assert answer is not None
    return answer


def test_a_dead_proc_and_a_hanging_agent(directory: Path) -> None:
    with Program(directory, "feed") as program:
        pids = program.spawn_ready(list(range(_NUM_HOSTS)))
        answer = ask(directory)
        assert [(row.host, row.pid, row.state) for row in sorted(answer.rows, key=lambda row: row.rank)] == [
            (f"local{rank}", pid, "ready") for rank, pid in enumerate(pids)
        ]
        assert (answer.missing, answer.left_out) == ([], [])
        assert all(row.rss_bytes > 1 << 20 for row in answer.rows)

        os.kill(pids[4], signal.SIGKILL)
        (dead,) = wait_until("its end", lambda: [row for row in ask(directory, rank=4).rows if row.state == "ended"])
        assert (dead.cause, dead.rss_bytes, dead.pid) == ("signal 9 (SIGKILL)", 0, pids[4])
        assert [row.rank for row in ask(directory, rank=3).rows] == [3]

        status = query_status(directory, _ASK_S)
        assert status is not None
        hanging = int(str(status["hosts"][1]["pid"]))
        os.kill(hanging, signal.SIGSTOP)
        try:
            # The second is asked by the first. Again, if this machine had more to do than to answer in that time.
            wait_until(
                "the rows of the others",
                lambda: ask(directory, _HANGING_S),
                accept=lambda answer: (
                    sorted(answer.missing) == ["host local1", "host local2"]
                    and sorted(row.rank for row in answer.rows) == [0, 3, 4]
                ),
            )
        finally:
            os.kill(hanging, signal.SIGCONT)
        wait_until("all hosts", lambda: not ask(directory).missing)


@pytest.mark.parametrize("config", [{"telemetry.max_answer_bytes": 3 * _ROW_BYTES}], indirect=True)
def test_an_answer_keeps_within_its_limit_and_names_the_others(directory: Path) -> None:
    with Program(directory, "feed") as program:
        program.spawn_ready(list(range(_NUM_HOSTS)))
        answer = ask(directory)
        assert 1 <= len(answer.rows) <= 3 and answer.missing == []
        left_out = {source.removeprefix("host ") for source in answer.left_out}
        assert left_out | {row.host for row in answer.rows} == {f"local{rank}" for rank in range(_NUM_HOSTS)}
        assert len(left_out) + len(answer.rows) == _NUM_HOSTS
        (row,) = ask(directory, rank=2).rows  # those that are not wanted take no room
        assert row.host == "local2"
