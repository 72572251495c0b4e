"""A rank that gets less time of its processor than the others is told apart, by the question that ships for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from monarch_hpc import Actor, context, endpoint, telemetry
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

pytest.importorskip("datafusion")
pytest.importorskip("pyarrow")

_PATIENCE_S = 60.0
_SLOW = 2
_RUNNING_S = 0.005
_STOPPED_TIMES = 9
"""The process is stopped for so many times the time that it has run: more than asked for, on busy cores."""
_STOPPED_AT_MOST_S = 2.0


class Worker(Actor):
    """Does the same work on all ranks."""

    @endpoint
    def where(self) -> tuple[str, int]:
        return context().proc.host, os.getpid()

    @endpoint
    def step(self) -> int:
        return sum(number * number for number in range(200_000))


@contextmanager
def throttled(pid: int) -> Iterator[None]:
    """Let a process run for a tenth of the time, as a quota of its processor does."""
    over = threading.Event()

    def throttle() -> None:
        while not over.is_set():
            begun_s = time.monotonic()
            over.wait(_RUNNING_S)
            os.kill(pid, signal.SIGSTOP)
            over.wait(min(_STOPPED_TIMES * (time.monotonic() - begun_s), _STOPPED_AT_MOST_S))
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_rank_that_is_throttled_is_told_apart_and_nobody_takes_it_for_dead() -> None:
    with controlled(load().config, 2) as hosts, hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        workers = procs.spawn("worker", Worker)
        places = [place for _, place in workers.where.call().get(_PATIENCE_S).items()]

        def slowest() -> dict[str, Any]:
            workers.step.call().get(_PATIENCE_S)
            answer = telemetry.query(telemetry.question("slow-rank"), timeout_s=_PATIENCE_S)
            rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
            return next(row for row in rows if row["endpoint"] == "step")

        with throttled(places[_SLOW][1]):
            row = wait_until(
                "the slow rank",
                slowest,
                _PATIENCE_S,
                accept=lambda row: row["rank"] == _SLOW and row["times_median"] > 2,
            )
        assert (row["actor"], row["host"], row["pid"]) == ("worker", *places[_SLOW])
        assert set(workers.where.call().get(_PATIENCE_S).values()) == set(places)
