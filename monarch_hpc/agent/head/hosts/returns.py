"""Lost hosts that come back: starts their agents again, and informs programs.

Slurm is asked first, and `supervision.relaunch` decides. A host's loss is explained to programs before anything is done
for its return, so that no news of the old agent comes after the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial

from monarch_hpc.agent.head.deadline import Later
from monarch_hpc.agent.head.events import (
    Event,
    HostFreed,
    HostGone,
    HostJoined,
    HostLossExplained,
    HostReturnChanged,
    ShutdownBegan,
)
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import DeathKind
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.relaunch import AskStanding, GiveUp, HostStanding, LaunchAgent, Relaunches, Step
from monarch_hpc.wire.control.allocation import HostEntry, HostReturned, HostStillLost
from monarch_hpc.wire.control.message import Message

__all__ = ["HostReturns", "ReturnWork"]

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class ReturnWork:
    """What is done for a host's return.

    Attributes:
        decide: the decisions.
        ask: asks Slurm for the standing of a host, by its name and the addresses of its earlier agent.
        launch: starts the agent of a host again; calls back once, when the attempt has ended, with the cause and
            whether Slurm refused it for now. An agent that has joined ends later. Returns what ends the attempt.
        start_s: time that an attempt may take.
    """

    decide: Relaunches
    ask: Callable[[str, Sequence[str], Callable[[HostStanding], None]], None]
    launch: Callable[[HostEntry, Callable[[str, bool], None]], Callable[[], None]]
    start_s: float


@dataclass(slots=True, eq=False)
class HostReturns:
    """Brings lost hosts back. It does no I/O; without `begin` it only informs programs of agents that join again.

    Args:
        apply: changes *state* by an event.
        clock: monotonic time in seconds.
        later: runs a callback after a delay in seconds.
    """

    state: HeadState
    peers: HeadPeers
    apply: Callable[[Event], None]
    clock: Callable[[], float]
    later: Later
    _work: ReturnWork | None = None
    _lost: set[int] = field(default_factory=set)
    _told: dict[int, str] = field(default_factory=dict)  # rank -> why it waits, as last written down

    def begin(self, work: ReturnWork) -> None:
        """Start agents again from now on."""
        self._work = work

    def on_event(self, event: Event) -> None:
        """Handle a change of the state."""
        match event:
            case HostGone():
                self._lost.add(event.rank)
            case HostLossExplained():
                self._on_lost(event)
            case HostJoined() if event.entry.rank in self._lost:
                self._lost.discard(event.entry.rank)
                self._forget(event.entry.rank)
                if self.state.roster.usable(event.entry.rank):
                    self._tell(lambda run: HostReturned(run, event.entry))
            case HostJoined() if self.state.past_deadline or event.entry.first_rank:
                if self.state.roster.usable(event.entry.rank):
                    self._tell(lambda run: HostReturned(run, event.entry))
            case HostFreed():
                self._forget(event.rank)
            case ShutdownBegan() if self._work is not None:
                self._work.decide.end_all()
            case _:
                pass

    def _on_lost(self, event: HostLossExplained) -> None:
        over = self.state.shutting_down is not None or event.rank in self.state.roster.freed
        left = event.kind is DeathKind.STOPPED or event.name in self.state.left
        if self._work is not None and event.rank in self._lost and not over and not left:
            silent = event.kind is not DeathKind.UNKNOWN
            self._do(event.rank, self._work.decide.lose(event.rank, silent=silent))

    def _do(self, rank: int, step: Step | None) -> None:
        work, slot = self._work, self.state.roster.at(rank)
        if work is None or step is None or slot is None or rank not in self._lost:
            return
        entry = slot.entry
        name = entry.name
        match step:
            case AskStanding():
                what = "its agent is to be started again"
                self._note(rank, what, step.why)
                if step.why and not step.soon:
                    self._tell(lambda run: HostStillLost(run, rank, step.why, given_up=False))
                self.later(step.delay_s, partial(self._ask, entry))
            case LaunchAgent():
                _log.warning("starting the agent on %s again, attempt %d", name, step.number)
                self._note(rank, f"its agent is started again, attempt {step.number}", "Slurm says that the host works")
                end = work.launch(entry, partial(self._on_ended, rank, step.ticket))
                self.later(work.start_s, partial(self._on_late, rank, step.ticket, end))
            case GiveUp():
                _log.warning("the agent on %s is not started again: %s", name, step.why)
                self._note(rank, "", step.why)
                self._told.pop(rank, None)
                self._tell(lambda run: HostStillLost(run, rank, step.why, given_up=True))

    def _note(self, rank: int, what: str, why: str) -> None:
        # Slurm may say the same for hours, and each change is a line in a file.
        new = self._told.get(rank) != what + why
        self._told[rank] = what + why
        if new:
            self.apply(HostReturnChanged(rank, what, why))

    def _ask(self, entry: HostEntry) -> None:
        if self._work is not None and entry.rank in self._work.decide.waiting:
            self._work.ask(entry.name, entry.addresses, partial(self._on_answer, entry.rank))

    def _on_answer(self, rank: int, standing: HostStanding) -> None:
        if self._work is not None:
            self._do(rank, self._work.decide.answer(rank, standing, self.clock()))

    def _on_ended(self, rank: int, ticket: int, cause: str, refused: bool) -> None:
        if self._work is not None:
            self._do(rank, self._work.decide.fail(rank, ticket, cause, refused=refused))

    def _on_late(self, rank: int, ticket: int, end: Callable[[], None]) -> None:
        if self._work is not None and self._work.decide.ticket(rank) == ticket:
            end()  # which is reported

    def _forget(self, rank: int) -> None:
        self._told.pop(rank, None)
        if self._work is not None:
            self._work.decide.end(rank)

    def _tell(self, news: Callable[[str], Message]) -> None:
        for name, run in self.state.runs.items():
            for member in self.peers.known(run.members):
                member.send(news(name))
