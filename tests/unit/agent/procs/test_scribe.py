"""The helper of a host that dies again and again: it is left alone for a minute, and then started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.proc_settings import ProcSettings
from monarch_hpc.agent.procs.scribe import Scribe
from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.config.load import load
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.ids import SlurmIds
from monarch_hpc.supervision.liveness import Lease
from monarch_hpc.telemetry.clock import ClockComparison
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.questions import Ask, Portion

_PATIENCE_S = 120.0
_QUESTION = Ask(1, "host_samples", {}, _PATIENCE_S)


class Agent:
    """The engine of an agent, whose clock can be put forward, and its helper."""

    def __init__(self, directory: Path, keep: str) -> None:
        self.passed_s = 0.0
        self.engine = Engine()
        self.engine.clock = lambda: monotonic() + self.passed_s
        self.engine.start()
        config = load().config
        settings = ProcSettings(
            allocation="0" * 32,
            rank=0,
            name="n1",
            key=b"",
            grant=Grant([0], 1 << 30, [], "", {}),
            listen_hosts=[],
            heartbeat_s=1.0,
            lease=Lease(1.0, 2.0),
            addresses=[],
            segments="",
            forwarders=[],
            telemetry=replace(config.telemetry, keep=keep),  # type: ignore[arg-type]  # as the test says
            procs=config.procs,
            limits=config.transport,
            fabric=config.fabric,
            ucx=config.ucx,
            rdma=config.rdma,
            slurm=SlurmIds.of({}),
            logs=config.logs,
            environment=dict(os.environ),
            directory=directory,
            owns_job=False,
        )
        self.reaper = Reaper(self.engine, lambda: 0)
        clock = ClockComparison("n1", 1, 1000.0, lambda _message: None, self.engine.call_later)
        self.scribe = Scribe(self.engine, settings, self.reaper, clock)

    def ask(self) -> Portion | None:
        """The answer to a question to the helper."""
        answers: list[Portion | None] = []
        self.engine.call_soon(lambda: self.scribe.ask(_QUESTION, 1 << 20, answers.append))
        wait_until("an answer", lambda: len(answers), _PATIENCE_S)
        return answers[0]

    def kill_twice(self) -> None:
        """Kill the helper, and the next one, and wait until the agent has noticed."""
        first = self.scribe.pid
        os.kill(first, signal.SIGKILL)
        second = wait_until(
            "the next helper", lambda: self.scribe.pid, _PATIENCE_S, accept=lambda pid: pid not in (0, first)
        )
        os.kill(second, signal.SIGKILL)
        wait_until("the end of both", lambda: self.scribe.pid == 0, _PATIENCE_S)

    def put_forward(self, by_s: float) -> None:
        """Let time pass."""
        self.passed_s += by_s
        self.engine.call_soon(lambda: None)

    def close(self) -> None:
        pid = self.scribe.pid
        self.engine.call_soon(self.scribe.close)
        wait_until("the end", lambda: pid not in self.reaper.watched, _PATIENCE_S)
        self.engine.close()
        self.reaper.close()


@pytest.fixture
def agent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(tmp_path, getattr(request, "param", "never"))
    yield agent
    agent.close()


@pytest.mark.slow  # starts interpreters
def test_after_a_minute_a_question_starts_it_again(agent: Agent) -> None:
    assert agent.ask() is not None and agent.ask() is not None
    agent.kill_twice()
    assert agent.ask() is None
    agent.put_forward(30.0)
    assert agent.ask() is None
    agent.put_forward(31.0)
    assert agent.ask() is not None


@pytest.mark.slow  # starts interpreters
@pytest.mark.parametrize("agent", ["always"], indirect=True)
def test_where_records_are_kept_it_starts_again_by_itself(agent: Agent) -> None:
    record_fd = make_memory("proc")
    place = ProcPlace("run", 1, 0, os.getpid())
    agent.engine.call_soon(lambda: agent.scribe.add(place, record_fd))
    wait_until("the helper", lambda: agent.scribe.pid, _PATIENCE_S)
    agent.kill_twice()
    agent.put_forward(61.0)
    wait_until("the next helper", lambda: agent.scribe.pid, _PATIENCE_S)
    assert agent.ask() is not None
    os.close(record_fd)
