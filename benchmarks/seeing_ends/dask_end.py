"""Dask: a cluster of one worker on this machine, with and without its dashboard."""

from __future__ import annotations

from typing import Any

from distributed import Client, LocalCluster

from benchmarks.seeing_ends.end import SeeingEnd, Worker

__all__ = ["DaskEnd"]


class DaskEnd(SeeingEnd):
    """An actor of its worker; its calls are in no table, only tasks are."""

    def start(self, *, recording: bool) -> None:
        address = ":0" if recording else None
        self._cluster: Any = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=address)
        self._client: Any = Client(self._cluster)
        self._actor: Any = self._client.submit(Worker, actor=True).result()
        self.echo(1)

    def echo(self, num: int) -> None:
        for number in range(num):
            self._actor.echo(number).result()

    def cpu_s(self) -> float:
        return float(self._actor.cpu_s().result())

    def pid(self) -> int:
        return int(self._actor.pid().result())

    def hold_gil(self) -> None:
        self._held = self._actor.hold_gil()

    def state(self) -> str:
        (worker,) = self._client.scheduler_info()["workers"].values()
        return str(worker["status"])

    def stack(self) -> str:
        return "yes" if any(self._client.call_stack().values()) else "no"

    def finish(self) -> None:
        self._client.close()
        self._cluster.close()
