"""Runs that outlive their program: how long they are held for a successor, and the procs that it takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from monarch_hpc.agent.head.deadline import Later
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState, RunState
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.core.logger import Logger
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, StopProcs
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.runs import TAKEN_OVER, OpenRun, RunTaken
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.tables.calls import CALLS, PROGRAM_MESH

__all__ = ["HeldRuns"]

_LOOK_S = 1.0
"""Time between looks whether the procs of a run without a program have finished: they may end a moment later."""

_NOT_IDLE = -1

_MAX_HOLD_S = 366 * 86400.0

_log = Logger(__name__)


class _Answer:
    """A link that takes the answer to one question."""

    backlogged = False
    fabric = "local"
    why = "the head asks itself"

    def __init__(self, take: Callable[[Rows], None]) -> None:
        self._take = take

    def send(self, message: Message) -> None:
        """Take the answer; a refused question is one without rows."""
        self._take(message if isinstance(message, Rows) else Rows(0, [], [], []))

    def close(self, reason: str) -> None:
        """Do nothing: the link is only asked on."""


def _count_calls(rows: Rows, num_procs: int) -> int:
    """The number of calls that all procs of a run have handled; `_NOT_IDLE` if one runs, or a proc has not answered."""
    procs = [row for portion in rows.portions for row in CALLS.read(portion.rows) if row.mesh != PROGRAM_MESH]
    if len(procs) < num_procs or any(row.scene.running or row.scene.problem for row in procs):
        return _NOT_IDLE
    return sum(endpoint.num_calls for row in procs for endpoint in row.scene.endpoints)


class HeldRuns:
    """Decides what becomes of a run whose program is lost, by the run's `OpenRun.on_loss`.

    Args:
        close: closes a run, with an exit code.
        send: sends agents, given by rank, a message.
        ask: asks all processes for rows of a table; the answer goes to the link.
        stop_s: see `Head`.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        later: Later,
        close: Callable[[str, int], None],
        send: Callable[[Iterable[int], Message], None],
        ask: Callable[[Link, Ask], None],
        stop_s: float,
    ) -> None:
        self._state = state
        self._peers = peers
        self._later = later
        self._close = close
        self._send = send
        self._ask = ask
        self._stop_s = stop_s
        # The last reports about each proc of the runs that may be held: its start, and its end if it has ended.
        self._reports: dict[str, dict[ProcKey, tuple[ProcReady, ProcEnded | None]]] = {}

    def note(self, message: Message) -> None:
        """Keep an agent's report about a proc, for a program that takes its run over."""
        if not isinstance(message, ProcReady | ProcEnded):
            return
        run = self._state.runs.get(message.run)
        if run is None or run.opened.on_loss == "stop":
            return
        for name in [name for name in self._reports if name not in self._state.runs]:
            del self._reports[name]
        reports = self._reports.setdefault(message.run, {})
        if isinstance(message, ProcReady):
            reports[message.proc] = message, None
        elif message.proc in reports:
            reports[message.proc] = reports[message.proc][0], message

    # ---- the loss of a program ----

    def lose(self, name: str, run: RunState, lost: int, cause: str) -> None:
        """Handle the loss of a member: end its procs, with the run if it owned that, or have them wait."""
        opened, num_procs = run.opened, sum(len(mesh.alive) for mesh in run.meshes.values())
        stays = opened.on_loss != "stop" and run.meshes and run.closing is None and self._state.shutting_down is None
        if not stays and lost == run.owner:
            _log.info("run %s: its controller is gone: %s", name, cause)
            self._close(name, -1)
        elif not stays:
            self._stop_meshes(name, lost)
        elif lost == run.owner and opened.on_loss == "finish":
            _log.warning("run %s: its program is gone: %s; its %d procs finish their calls", name, cause, num_procs)
            self._watch(name, run, run.epoch, _NOT_IDLE)
        elif lost == run.owner:
            words = "run %s: its program is gone: %s; its %d procs wait %.0f s for another one"
            _log.warning(words, name, cause, num_procs, opened.hold_s)
            self._later(opened.hold_s, partial(self._expire, name, run, run.epoch))
        else:
            self._later(opened.hold_s, partial(self._stop_meshes, name, lost))

    def _stop_meshes(self, name: str, requester: int) -> None:
        """End the procs that a lost member of a run has requested; those that another program took over stay."""
        run = self._state.runs.get(name)
        for number, mesh in {} if run is None else run.meshes.items():
            if mesh.peer == requester:
                self._send(mesh.hosts, StopProcs(name, number, sorted(mesh.hosts), self._stop_s))

    def _watch(self, name: str, run: RunState, epoch: int, before: int) -> None:
        """Close the run once its procs run no call, and have begun none since the last look, which saw *before*."""

        def looked(rows: Rows) -> None:
            seen = _count_calls(rows, sum(len(mesh.alive) for mesh in run.meshes.values()))
            if not self._waits(name, run, epoch):
                return
            if seen == before != _NOT_IDLE:
                _log.info("run %s: its procs have finished", name)
                self._close(name, -1)
            else:
                self._later(_LOOK_S, partial(self._watch, name, run, epoch, seen))

        if self._waits(name, run, epoch):
            self._ask(_Answer(looked), Ask(0, CALLS.name, {"run": name}, _LOOK_S))

    def _waits(self, name: str, run: RunState, epoch: int) -> bool:
        return self._state.runs.get(name) is run and run.epoch == epoch and run.closing is None

    def _expire(self, name: str, run: RunState, epoch: int) -> None:
        if self._waits(name, run, epoch):
            _log.warning("run %s: nobody has taken it over in %.0f s", name, run.opened.hold_s)
            self._close(name, -1)

    # ---- the next program ----

    def problem_of(self, message: OpenRun, run: RunState | None) -> str:
        """Why a run cannot be opened, or taken over, in this way; empty if it can."""
        if message.on_loss not in ("stop", "hold", "finish") or not 0.0 <= message.hold_s <= _MAX_HOLD_S:
            return f"{message.on_loss!r} for {message.hold_s} s: a run can stop, hold or finish for up to a year"
        if not message.takes:
            return ""
        if run is None:
            return f"there is no run {message.run} to take over: it has ended, or 'run.hold_s' is over"
        if message.takes not in (-1, run.epoch):
            return f"{TAKEN_OVER} {message.run}"
        return ""

    def superseded(self, run: RunState | None, message: OpenRun, peer: int) -> list[Link]:
        """The members of a run that a new owner replaces.

        An old one may only be cut off, and would otherwise resume control when it reconnects. The later owner wins.
        """
        if run is None or not message.owner or run.owner in (None, peer):
            return []
        return self._peers.known(member for member in run.members if member != peer)

    def hand_over(self, link: Link, message: OpenRun) -> None:
        """Send a program that takes a run over what agents have reported about its procs."""
        if not message.takes:
            return
        failpoint("head.takeover")
        run = self._state.runs[message.run]
        for proc, (ready, ended) in self._reports.get(message.run, {}).items():
            mesh = run.meshes.get(proc.mesh)
            if mesh is None or proc.host not in mesh.hosts:
                continue  # it was stopped, or its host is gone
            link.send(ready)
            if ended is not None:
                link.send(ended)
        link.send(RunTaken(message.run))
