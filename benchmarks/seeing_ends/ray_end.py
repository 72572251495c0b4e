"""Ray: a private cluster on this machine, with dashboard and task events, or without both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.util.state import list_actors, list_tasks

from benchmarks.seeing_ends.end import Missing, SeeingEnd, Worker, pids_of

__all__ = ["RayEnd"]

_NUM_CPUS = 128
"""More than this machine has: more actors than cores are to run here."""
_WINDOW = 1000
_QUERY_S = 30
_LIMIT = 10_000
"""The most rows that its API returns."""
_BIN = Path(sys.executable).parent
_Echo: Any = ray.remote(num_cpus=1, max_restarts=0)(Worker)


class RayEnd(SeeingEnd):
    """Actors by handles; the answers of its state API."""

    def start(self, *, recording: bool) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            num_cpus=_NUM_CPUS,
            include_dashboard=recording,
            log_to_driver=False,
            object_store_memory=2**28,
            _node_ip_address="127.0.0.1",
            _temp_dir=tempfile.gettempdir(),
            _system_config=None if recording else {"task_events_report_interval_ms": 0},
        )
        self._address = ray.get_runtime_context().gcs_address
        self._actor = _Echo.remote()
        self.echo(1)

    def echo(self, num: int) -> None:
        for number in range(num):
            ray.get(self._actor.echo.remote(number))

    def cpu_s(self) -> float:
        return float(ray.get(self._actor.cpu_s.remote()))

    def pid(self) -> int:
        return int(ray.get(self._actor.pid.remote()))

    def hold_gil(self) -> None:
        self._held = self._actor.hold_gil.remote()

    def fill(self, num: int) -> None:
        for begin in range(0, num, _WINDOW):
            ray.get([self._actor.echo.remote(number) for number in range(begin, min(num, begin + _WINDOW))])

    def helpers(self) -> list[int]:
        return pids_of("dashboard/dashboard.py", "dashboard.subprocesses", "ray-dashboard", "ray::DashboardAgent")

    def crowd(self, num: int) -> None:
        self._crowd = [self._actor, *(_Echo.remote() for _ in range(num - 1))]
        ray.get([actor.echo.remote(0) for actor in self._crowd])

    def listing(self) -> list[str]:
        return [str(_BIN / "ray"), "list", "actors", "--address", self._address, "--limit", "1000"]

    def num_calls(self) -> int:
        return len(list_tasks(self._address, filters=[("name", "=", "Worker.echo")], limit=_LIMIT, timeout=_QUERY_S))

    def state(self) -> str:
        (actor,) = list_actors(self._address, detail=True, timeout=_QUERY_S)
        cause = (actor.death_cause or {}).get("actor_died_error_context", {}).get("error_message", "")
        return f"{actor.state}, {cause.split('.')[0]}" if cause else str(actor.state)

    def stack(self) -> str:
        if os.geteuid() or shutil.which("sudo") is None:
            raise Missing("not asked: `ray stack` runs sudo")
        argv = [str(_BIN / "ray"), "stack"]
        text = subprocess.run(argv, capture_output=True, text=True, timeout=2 * _QUERY_S, check=False).stdout
        return "yes" if f"Process {self._last_pid}:" in text else "no"

    def inflict(self, fault: str) -> None:
        self._last_pid = self.pid()
        super().inflict(fault)

    def finish(self) -> None:
        ray.shutdown()

    def close(self) -> None:
        ray.shutdown()
