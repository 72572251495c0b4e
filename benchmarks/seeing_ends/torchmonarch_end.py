"""PyTorch Monarch, from its wheel: its job on this machine, with and without telemetry."""

from __future__ import annotations

import asyncio
import time
import urllib.parse
import urllib.request
from typing import Any

import monarch.actor
from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob, TelemetryConfig

from benchmarks.seeing_ends.end import EndpointsEnd, Missing, Worker, pids_of

__all__ = ["MonarchEnd"]

_BURST = 512
"""Calls in flight: with more of them Monarch becomes slower."""
_QUERY_S = 60.0
_ARRIVE_S = 30.0
_STATE = """
SELECT s.new_status, s.reason FROM actor_status_events s JOIN actors a ON a.id = s.actor_id
WHERE a.full_name LIKE 'echo%' ORDER BY s.timestamp_us DESC LIMIT 1
"""
_GROUP = "SELECT endpoint, count(*) AS calls, min(timestamp_us) AS first FROM messages GROUP BY endpoint"


class _Echo(Actor):
    def __init__(self) -> None:
        self._work = Worker()

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def pid(self) -> int:
        return self._work.pid()

    @endpoint
    def cpu_s(self) -> float:
        return self._work.cpu_s()

    @endpoint
    def hold_gil(self) -> None:
        self._work.hold_gil()


class MonarchEnd(EndpointsEnd):
    """Synchronous endpoints and calls, its fastest ones; many calls with asyncio, which is faster than `get`."""

    def start(self, *, recording: bool) -> None:
        # By default the first death interrupts the program.
        monarch.actor.unhandled_fault_hook = lambda failure: None
        self._job = ProcessJob({"hosts": 1})
        if recording:
            self._job.enable_telemetry(TelemetryConfig())
        self._state = self._job.state(cached_path=None)
        procs = self._state.hosts.spawn_procs(per_host={"p": 1})
        self._actor = procs.spawn("echo", _Echo).slice(hosts=0, p=0)
        self.echo(1)
        self._num = 1

    def _ask(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._state.query_engine_client.query(sql, timeout=_QUERY_S)["rows"]
        return rows

    def fill(self, num: int) -> None:
        async def send_all() -> None:
            for begin in range(0, num, _BURST):
                numbers = range(begin, min(num, begin + _BURST))
                await asyncio.gather(*[self._actor.echo.call_one(number) for number in numbers])

        asyncio.run(send_all())
        before, end_s = -1, time.monotonic() + _ARRIVE_S
        while (now := self.num_calls()) != before and time.monotonic() < end_s:
            before = now
            time.sleep(2)

    def count(self) -> int:
        return int(self._ask("SELECT count(*) AS n FROM actors")[0]["n"])

    def group(self) -> int:
        return sum(int(row["calls"]) for row in self._ask(_GROUP) if row["endpoint"] == "echo")

    def helpers(self) -> list[int]:
        return pids_of("_job_sidecar_worker")

    def num_calls(self) -> int:
        return int(self._ask("SELECT count(*) AS n FROM messages WHERE endpoint = 'echo'")[0]["n"])

    def state(self) -> str:
        (row,) = self._ask(_STATE)
        return f"{row['new_status']}, reason {row['reason']}"

    def stack(self) -> str:
        url = str(self._state.admin_url)
        with urllib.request.urlopen(f"{url}/v1/tree", timeout=_QUERY_S) as answer:
            tree = answer.read().decode()
        # The line of the proc: its name, and its address.
        found = [
            line.rsplit("/v1/", 1)[1].strip() for line in tree.splitlines() if "anon-0<" in line and "/v1/" in line
        ]
        found = [name for name in found if urllib.parse.unquote(name).startswith("anon-0<")]
        if not found:
            raise Missing("the proc is not in its tree")
        with urllib.request.urlopen(f"{url}/v1/pyspy/{found[0]}", timeout=_QUERY_S) as answer:
            text = answer.read().decode()
        return "yes" if "hold_gil" in text or "stack_traces" in text else f"no: {text[:200]}"

    def finish(self) -> None:
        self._job.kill()

    def close(self) -> None:
        self._job.kill()
