"""Closes runs: has the hosts end their procs, waits for them to report it, and informs the members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from functools import partial

from monarch_hpc.agent.head import events
from monarch_hpc.agent.head.deadline import Later
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.runs.runs import RunPeers
from monarch_hpc.agent.head.state import HeadState, RunState
from monarch_hpc.core.logger import Logger
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.runs import CloseRun, RunClosed

__all__ = ["RunClosing"]

_CLOSE_S = 10.0
"""Beyond the procs' own grace, how long agents may take to report that a run's procs are gone."""

_ORPHAN_S = 2.0
"""Time that a run without members waits for its owner, which may attach after a short program has ended."""

_log = Logger(__name__)


class RunClosing:
    """The end of runs.

    Args:
        run_peers: the members of each run; those of a run that is closed are removed.
        apply: changes the state by an event.
        send: sends agents, given by rank, a message.
        stop_s: see `Head`.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        run_peers: MutableMapping[str, RunPeers],
        apply: Callable[[events.Event], None],
        send: Callable[[Iterable[int], Message], None],
        later: Later,
        stop_s: float,
    ) -> None:
        self._state = state
        self._peers = peers
        self._run_peers = run_peers
        self._apply = apply
        self._send = send
        self._later = later
        self._stop_s = stop_s

    def close(self, name: str, exit_code: int) -> None:
        """Have the hosts of a run end its procs; nothing if that has begun."""
        run = self._state.runs[name]
        if run.closing is not None:
            return
        self._apply(events.RunStopping(name))
        self._send(set(run.closing or ()), CloseRun(name, exit_code))
        self._later(self._stop_s + _CLOSE_S, partial(self._on_deadline, name, run))
        self.report(name, run)

    def close_orphan_later(self, name: str, run: RunState) -> None:
        """Close a run that has lost its last member, and has no owner, unless its owner attaches soon."""
        self._later(_ORPHAN_S, partial(self._close_orphan, name, run))

    def closed_on(self, name: str, rank: int) -> None:
        """Note that a host has no procs of a run any more."""
        if (run := self._state.runs.get(name)) is not None:
            self._apply(events.RunLeftHost(name, rank))
            self.report(name, run)

    def report(self, name: str, run: RunState) -> None:
        """Inform the members of a run if it is closed on all hosts."""
        if name not in self._state.runs:
            self._run_peers.pop(name).close()
            for member in self._peers.of(run.members):
                member.send(RunClosed(name))

    def _close_orphan(self, name: str, run: RunState) -> None:
        # An owner that has come and is lost since then has decided what becomes of the run, which may be held.
        if self._state.runs.get(name) is run and run.owner is None and not run.members:
            self.close(name, -1)

    def _on_deadline(self, name: str, run: RunState) -> None:
        if self._state.runs.get(name) is run:
            left = sorted(run.closing or ())
            _log.warning("run %s: procs may be left on %s", name, ", ".join(map(self._state.roster.name, left)))
            for rank in left:
                self.closed_on(name, rank)
