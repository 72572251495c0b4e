"""Lost hosts and killed procs: programs are told once, with the cause, for which Slurm is asked."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from signal import SIGKILL

from monarch_hpc.agent.head.events import Event, HostLossExplained
from monarch_hpc.agent.head.hosts.roster import HostSlot
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState, RunState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.wire.control.allocation import HostEnded, ShutDown
from monarch_hpc.wire.control.procs import ProcEnded

__all__ = ["AskSlurm", "HostLosses", "no_answer"]

AskSlurm = Callable[[str, Callable[[Death | None], None]], None]
"""Asks Slurm for the death of a host, or of the job for an empty name; see `agent.resources.slurm_query`."""

_UNREACHABLE = tuple(
    os.strerror(number) for number in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
)
"""Errors of a connection that say that no packet passes. A host whose agent was killed ends it in another way."""

_KILLED = str(Exit(None, SIGKILL))


def no_answer(_host: str, answered: Callable[[Death | None], None]) -> None:
    """Answer that nothing is known, as where there is no Slurm."""
    answered(None)


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of a host: what its link said, and whether it had been silent before."""

    slot: HostSlot
    cause: str
    silent: bool


class HostLosses:
    """Explains losses of hosts. It does no I/O.

    Args:
        apply: changes *state* by an event.
        ask: asks Slurm.
    """

    def __init__(self, state: HeadState, peers: HeadPeers, apply: Callable[[Event], None], ask: AskSlurm) -> None:
        self._state = state
        self._peers = peers
        self._apply = apply
        self._ask = ask
        self._dismissed: dict[int, Death] = {}
        self._killed: dict[str, list[tuple[ProcEnded, Callable[[ProcEnded], None]]]] = {}

    def explain_proc(self, host: str, ended: ProcEnded, tell: Callable[[ProcEnded], None]) -> None:
        """Call *tell* with the end of a proc of *host*; for one that was killed, Slurm is asked first.

        Where Slurm kills what is on a host, an agent may outlive its procs for long enough to report their ends.
        """
        if ended.expected or ended.cause != _KILLED:
            tell(ended)
            return
        waiting = self._killed.setdefault(host, [])
        waiting.append((ended, tell))
        if len(waiting) == 1:
            self._ask(host, partial(self._tell_killed, host))

    def _tell_killed(self, host: str, death: Death | None) -> None:
        for ended, tell in self._killed.pop(host):
            known = ended if death is None else replace(ended, cause=f"{_KILLED}; {death.cause}", kind=death.kind.value)
            tell(known)

    def dismiss(self, slot: HostSlot, agent: Link, grace_s: float) -> None:
        """Let an agent end that has got SIGTERM alone: Slurm takes its host. Its procs have *grace_s* seconds."""

        def answered(death: Death | None) -> None:
            if death is None:
                agent.send(ShutDown(grace_s))
            else:
                self.expect(slot.entry.rank, death)
                agent.send(ShutDown(grace_s, death.kind.value, death.cause))

        self._ask(slot.entry.name, answered)

    def expect(self, rank: int, death: Death) -> None:
        """Note why a host is about to be lost."""
        self._dismissed[rank] = death

    def explain(self, slot: HostSlot, cause: str, life: Liveness, runs: Mapping[str, RunState]) -> None:
        """Find out why the agent of *slot* is lost, and tell the members of *runs*.

        Args:
            cause: why its link has ended, in words.
            life: its last liveness.
        """
        loss = _Loss(slot, cause, life is not Liveness.ALIVE or any(words in cause for words in _UNREACHABLE))
        rank = slot.entry.rank
        known = self._dismissed.pop(rank, None)
        if known is None and slot.entry.name in self._state.left:
            known = Death(DeathKind.STOPPED, cause)
        tell = partial(self._tell, loss, dict(runs))
        if known is None:
            self._ask(slot.entry.name, tell)
        else:
            tell(known)

    def _tell(self, loss: _Loss, runs: Mapping[str, RunState], death: Death | None) -> None:
        rank, cause = loss.slot.entry.rank, loss.cause
        kind = DeathKind.NETWORK if loss.silent else DeathKind.UNKNOWN
        if death is not None:
            kind = death.kind
            cause = cause if death.cause == cause else f"{cause}; {death.cause}"
        self._apply(HostLossExplained(rank, loss.slot.entry.name, kind, cause))
        entry, returning = loss.slot.entry, bool(loss.slot.returning) and kind is DeathKind.UNKNOWN
        for name, run in runs.items():
            for member in self._peers.known(run.members):
                member.send(HostEnded(name, rank, cause, kind.value, entry.incarnation, returning=returning))
