"""Telemetry of a job as programs for Monarch use it: answers to questions in SQL, and the address of a dashboard."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

from monarch_hpc.allocation.settings import name_of
from monarch_hpc.core.arguments import check_seconds, check_text
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.process.fork import Owned, divert, watch_forks
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.mesh.program.query import directory_of, query_one

__all__ = ["JobTelemetry", "QueryEngineClient"]

_WAIT_S = 10.0
_START_S = 60.0
"""Time that a dashboard may take to start: half a second on an idle machine, and long where it is loaded from afar."""

_DASH = "monarch_hpc.cli"
"""By name, because the commands are above the jobs."""


class QueryEngineClient:
    """Answers questions in SQL about the hosts of a job, as `monarch_hpc.telemetry.query` does.

    Args:
        allocation: id of the allocation of the job's hosts.
    """

    def __init__(self, allocation: str) -> None:
        self._allocation = allocation

    def query(self, sql: str, timeout: float | None = None) -> dict[str, object]:
        """Ask all processes of the job, and answer a question about their records.

        Args:
            timeout: seconds that hosts have to answer, and then the query itself; None for 10.

        Returns:
            ``rows``: a dict by column for each row; ``missing_hosts``: who did not answer, in words.

        Raises:
            AllocationError: the program does not use the job's hosts any more.
            QueryError: as for `monarch_hpc.telemetry.query`.
        """
        sql = check_text("the query", sql, filled=True)
        timeout_s = _WAIT_S if timeout is None else check_seconds("timeout", timeout)
        answer = query_one(self._allocation, sql, timeout_s)
        columns = answer.columns
        rows = [dict(zip(columns, row, strict=True)) for row in answer.rows]
        return {"rows": rows, "missing_hosts": answer.missing_hosts}


class JobTelemetry:
    """What `JobState` offers of a job with telemetry.

    Args:
        allocation: id of the allocation of the job's hosts.
        dashboard_port: preferred port of a dashboard; None if there is to be none.
    """

    def __init__(self, allocation: str, dashboard_port: int | None) -> None:
        self.client = QueryEngineClient(allocation)
        self._allocation = allocation
        self._port = dashboard_port

    @property
    def dashboard_url(self) -> str | None:
        """The address of the dashboard, with its token; None if there is to be none. Starts it at the first use.

        Raises:
            AllocationError: it does not start, or the program does not use the job's hosts any more.
            ForkedError: this process was forked from the one with the dashboard.
        """
        if self._port is None:
            return None
        return _dashboards().url(directory_of(self._allocation), self._port)


class _Dashboards(Owned):
    """The dashboards that this program has started, one for each allocation. They end with it, however it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Path, tuple[subprocess.Popen[bytes], str]] = {}
        atexit.register(self.close)
        watch_forks(self)

    def url(self, directory: Path, port: int) -> str:
        """Return the address of the allocation's dashboard, which is started unless it runs."""
        self.check_own()
        with self._lock:
            known = self._open.get(directory)
            if known is None or known[0].poll() is not None:
                known = self._open[directory] = self._start(directory, port)
            return known[1]

    def _start(self, directory: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
        problem = ""
        for tried in dict.fromkeys((port, 0)):  # the preferred port may be in use
            command = ["dash", str(directory), "--port", str(tried), "--until-eof", "--json"]
            process = launch(
                [sys.executable, "-P", "-m", _DASH, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                new_session=True,
            )
            document = _read_document(process)
            if isinstance(document, dict) and "url" in document:
                return process, str(document["url"])
            _end(process)
            problem = json.dumps(document)
        raise AllocationError(name_of(directory), f"its dashboard does not start: {problem}; try 'monarch-hpc dash'")

    def forked(self, parent: int) -> None:
        """Leave the dashboards to *parent*: they end once nobody holds their input."""
        self.forked_from = parent
        atexit.unregister(self.close)
        for process, _ in self._open.values():
            if process.stdin is not None:
                divert([process.stdin.fileno()])

    def close(self) -> None:
        """End them."""
        for process, _ in self._open.values():
            _end(process)


_known: _Dashboards | None = None
_making = threading.Lock()


def _dashboards() -> _Dashboards:
    global _known
    with _making:
        if _known is None:
            _known = _Dashboards()
        return _known


def _read_document(process: subprocess.Popen[bytes]) -> object:
    """What a dashboard prints when it serves, or why it does not."""
    assert process.stdout is not None
    output, text, deadline = process.stdout.fileno(), b"", Deadline(_START_S)
    while True:
        if not select.select([output], [], [], max(deadline.left_s(), 0.0))[0]:
            return f"it has printed nothing for {_START_S:g} s"
        piece = os.read(output, 1 << 16)
        text += piece
        try:
            return json.loads(text)
        except ValueError:
            if not piece:
                return text.decode(errors="replace") or f"it ended with status {process.wait()}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # it leaves nothing behind: it serves on a port
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
