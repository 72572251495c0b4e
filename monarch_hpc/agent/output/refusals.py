"""The connections that procs refuse, told in the agent's log: in a proc's own they would reach the user's terminal."""

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
"""Between two looks at what procs have counted: one read of eight bytes for each."""
_LOG_INTERVAL_S = 60.0
"""A scan of ports is one line in the log, with a count in the next one."""
_MAX_NAMED = 4

_log = Logger(__name__)


class Refusals:
    """Watches what the procs of a host count. All methods are for the driver of the engine.

    Args:
        procs: those that run; changes as they come and go.
    """

    def __init__(self, engine: Engine, procs: Collection[Proc]) -> None:
        self._engine = engine
        self._procs = procs
        self._seen: dict[Proc, int] = {}
        self._new: Counter[str] = Counter()  # not said yet, by proc
        self._logged_s = engine.clock() - _LOG_INTERVAL_S
        engine.call_later(_POLL_S, self._poll)

    def ended(self, proc: Proc) -> None:
        """Take what a proc has counted last."""
        self._read(proc)
        self._seen.pop(proc, None)

    def log_new(self) -> None:
        """Write what is new to the log."""
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
