"""The electorate of an allocation: whose voices elect the next head, and how it changes without two halves that rule.

A voice is the incarnation of a process, so that a process which has lost its memory is another voice. Each change of
the electorate passes through a joint one, in which the voices before and after the change must agree; a change begins
when more than half have acknowledged the last one. This is the joint consensus of Raft. A change that can never be
completed, because the voices that are missing have ended, closes the electorate instead: it elects nobody any more.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from monarch_hpc.core.dataclass import dataclass

__all__ = ["Electorate", "Voice", "Voters"]

Voice = int
"""The incarnation of an agent, or of the owner of a run."""


@dataclass(frozen=True, slots=True)
class Voters:
    """The voices of one set of hosts.

    Args:
        hosts: the agents, by rank.
        owner: the owner of the oldest open run, whose voice counts where the number of hosts is even; 0 without one.
    """

    hosts: tuple[Voice, ...]
    owner: Voice = 0

    @property
    def all(self) -> frozenset[Voice]:
        """All voices that may count."""
        return frozenset((*self.hosts, self.owner)) - {0}

    def more_than_half(self, voices: AbstractSet[Voice], gone: Voice = 0) -> bool:
        """Tell whether *voices* are more than half of all; *gone* is a host that Slurm says has left the job."""
        counted = self._counted(gone)
        return 2 * len(counted & voices) > len(counted)

    def at_least_half(self, voices: AbstractSet[Voice]) -> bool:
        """Tell whether the others cannot be more than half."""
        counted = self._counted()
        return 2 * len(counted & voices) >= len(counted)

    def held(self, voices: AbstractSet[Voice], head: Voice) -> bool:
        """Tell whether no election without *voices* can succeed.

        Args:
            head: the host that Slurm may say is gone; 0 if that does not count.
        """
        if not self.more_than_half(voices):
            return False
        # Without another host nobody stands, so that Slurm's word elects nobody either.
        return not head or not set(self.hosts) - {head} or self.more_than_half(voices - {head}, gone=head)

    def _counted(self, gone: Voice = 0) -> set[Voice]:
        counted = {voice for voice in self.hosts if voice != gone}
        if self.owner and len(counted) % 2 == 0:
            counted.add(self.owner)
        return counted


@dataclass(frozen=True, slots=True)
class Electorate:
    """The electorate that a head has announced.

    Args:
        term: the head's term.
        number: counts the electorates of the term, from 1.
        head: the head's own voice; it does not vote.
        voters: the voices.
        before: the voices before a change that is not complete, which must agree, too.
        heeds_slurm: whether Slurm's word that the head's host has left the job counts in the next election. Then each
            change of the electorate needs more voices.
        closed: it elects nobody; older ones do by Slurm's word at most.
    """

    term: int
    number: int
    head: Voice
    voters: Voters
    before: Voters | None = None
    heeds_slurm: bool = False
    closed: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Later electorates are greater."""
        return self.term, self.number

    @property
    def voices(self) -> frozenset[Voice]:
        """All voices that may count."""
        return frozenset(voice for voters in self._sets() for voice in voters.all)

    @property
    def owners(self) -> frozenset[Voice]:
        """The voices of the owners of runs."""
        return frozenset(voters.owner for voters in self._sets()) - {0}

    def elects(self, voices: AbstractSet[Voice], *, head_gone: bool) -> bool:
        """Tell whether *voices* elect a head; *head_gone* is Slurm's word that the head's host has left the job."""
        gone, voices = self.head if head_gone and self.heeds_slurm else 0, voices - {self.head}
        return not self.closed and all(voters.more_than_half(voices, gone) for voters in self._sets())

    def hears(self, voices: AbstractSet[Voice]) -> bool:
        """Tell whether a head that hears *voices*, one of which is its own, may go on: it hears at least half."""
        return all(voters.at_least_half(voices) for voters in self._sets())

    def follower(self, voters: Voters, acknowledged: AbstractSet[Voice], *, complete: bool = True) -> Electorate | None:
        """The next electorate towards *voters*; None if there is nothing to change, or too few have *acknowledged*.

        Args:
            complete: whether all others are lost; not while a new head awaits hosts, which may still acknowledge.
        """
        head = self.head if self.heeds_slurm else 0
        if self.before is None and voters == self.voters:
            return None
        if self.closed or not all(each.held(acknowledged, head) for each in self._sets()):
            return self._close(voters, acknowledged) if complete else None
        if self.before is not None:
            return replace(self, number=self.number + 1, before=None)
        return replace(self, number=self.number + 1, voters=voters, before=self.voters)

    def _close(self, voters: Voters, acknowledged: AbstractSet[Voice]) -> Electorate | None:
        """End all elections but those by Slurm's word; then change the voices, which elect nobody.

        Each needs that all who are left, *voters*, have acknowledged the last step, and that the others elect nobody.
        """
        if not voters.all & self.voices <= acknowledged:
            return None
        if not all(each.at_least_half(acknowledged) for each in self._sets()):
            return None
        if self.closed:
            return replace(self, number=self.number + 1, voters=voters, before=None)
        return replace(self, number=self.number + 1, closed=True)

    def under(self, term: int, head: Voice) -> Electorate:
        """The same voices, as the head of a later term announces them first."""
        return replace(self, term=term, number=1, head=head)

    def _sets(self) -> tuple[Voters, ...]:
        return (self.voters,) if self.before is None else (self.voters, self.before)
