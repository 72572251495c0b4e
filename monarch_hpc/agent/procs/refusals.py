"""Logs the connections that procs refuse in the agent's log: logged by a proc, they would reach the user's terminal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection

from monarch_hpc.agent.procs.proc import Proc
from monarch_hpc.core.logger import Logger
from monarch_hpc.telemetry.layout import REFUSED, REFUSED_AT
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Refusals"]

_POLL_S = 2.0
"""Interval between two polls of the procs' counters: one read of eight bytes for each proc."""
_LOG_INTERVAL_S = 60.0
"""Minimum interval between log lines: a port scan gives one line, and a count in the next one."""
_MAX_NAMED = 4

_log = Logger(__name__)


class Refusals:
    """Polls the refusal counters of a host's procs. All methods must be called on the engine's driver.

    Args:
        procs: the running procs; a live view.
    """

    def __init__(self, engine: Engine, procs: Collection[Proc]) -> None:
        self._engine = engine
        self._procs = procs
        self._seen: dict[Proc, int] = {}
        self._new: Counter[str] = Counter()  # not logged yet, by proc
        self._logged_s = engine.clock() - _LOG_INTERVAL_S
        engine.call_later(_POLL_S, self._poll)

    def ended(self, proc: Proc) -> None:
        """Read the final count of a proc that has ended."""
        self._read(proc)
        self._seen.pop(proc, None)

    def log_new(self) -> None:
        """Log the refusals since the last log line, if any."""
        if self._new:
            named = ", ".join(f"{num} at {name}" for name, num in self._new.most_common(_MAX_NAMED))
            more = f" and {len(self._new) - _MAX_NAMED} more procs" if len(self._new) > _MAX_NAMED else ""
            _log.warning(
                "%d connections without the allocation's key were refused: %s%s", self._new.total(), named, more
            )
            self._new.clear()
            self._logged_s = self._engine.clock()

    def _poll(self) -> None:
        for proc in self._procs:
            self._read(proc)
        if self._engine.clock() - self._logged_s >= _LOG_INTERVAL_S:
            self.log_new()
        self._engine.call_later(_POLL_S, self._poll)

    def _read(self, proc: Proc) -> None:
        data = os.pread(proc.record_fd, REFUSED.size, REFUSED_AT) if proc.record_fd >= 0 else b""
        num = REFUSED.unpack(data)[0] if len(data) == REFUSED.size else 0
        new = num - self._seen.get(proc, 0)
        if new > 0:
            self._seen[proc] = num
            self._new[f"rank {proc.start.rank} of run {proc.start.run}"] += new
