"""Succession: one agent's part in finding the head of the next term, and the rules by which a minority stops.

A pure state machine: messages and times in, answers out. `Ballot` is the part that also the owner of a run has, which
gives its voice but never stands.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.supervision.electorate import Electorate, Voice, Voters

__all__ = ["Ballot", "Candidacy", "Duty", "Part", "Patience", "Succession"]


@dataclass(frozen=True, slots=True)
class Patience:
    """The times of a succession, in seconds.

    Args:
        step_s: between two candidates' turns; longer than an exchange of messages.
        fence_s: without more than half of the voices, after which an agent stops; config key `liveness.fence_s`.
        rejoin_s: after which a stopped agent leaves; config key `agent.rejoin_s`.
        silent_s: of a head, after which its followers elect another one; config key `liveness.dead_s`.
    """

    step_s: float
    fence_s: float
    rejoin_s: float
    silent_s: float


@dataclass(frozen=True, slots=True)
class Candidacy:
    """A request for voices.

    Args:
        order: of the electorate that the candidate counts by, see `Electorate.order`.
    """

    term: int
    candidate: Voice
    order: tuple[int, int]


class Ballot:
    """One voice, which is given once a term, and never to a candidate that counts by an older electorate.

    Attributes:
        term: the highest term in which this process has stood or given its voice, or whose head it has followed.
        choice: the candidate or head of *term*; 0 if this process knows of none.
        followed: term and voice of the last head that was followed.
        electorate: the newest one that was announced to it.
    """

    def __init__(self, own: Voice) -> None:
        self.own = own
        self.term = 0
        self.choice: Voice = 0
        self.followed: tuple[int, Voice] = (0, 0)
        self.electorate: Electorate | None = None
        self._has_head = False
        self._given: Mapping[int, Voice] = {}  # to others, by term, where it may still be counted

    @property
    def has_head(self) -> bool:
        """Whether it takes the orders of a head."""
        return self._has_head

    def follow(self, term: int, head: Voice) -> bool:
        """Follow a head; False if its term is over, or it is not the head of that term.

        A candidate of the same term that has this voice has lost; one of a later term may still be elected by it, so
        that this process cannot be one of those that keep the head in office until that one has withdrawn.
        """
        last, last_head = self.followed
        if term < last or (term == last and head != last_head) or any(given > term for given in self._given):
            return False
        if term >= self.term:
            self.term, self.choice = term, head
        self.followed, self._has_head, self._given = (term, head), True, {}
        return True

    def takes_orders(self, term: int, head: Voice) -> bool:
        """Tell whether an order of a term's head is to be carried out."""
        return self._has_head and (term, head) == self.followed

    def announce(self, electorate: Electorate) -> bool:
        """Take the head's electorate; return whether to acknowledge it."""
        if not self.takes_orders(electorate.term, electorate.head):
            return False
        if self.electorate is None or self.electorate.order < electorate.order:
            self.electorate = electorate
        return self.electorate == electorate

    def lose(self, term: int, head: Voice) -> bool:
        """Note that contact with a head was lost; False if it was followed no more."""
        if not self.takes_orders(term, head):
            return False
        self._has_head = False
        return True

    def give(self, candidacy: Candidacy) -> bool:
        """Tell whether the candidate gets this voice."""
        order = (0, 0) if self.electorate is None else self.electorate.order
        term, candidate = candidacy.term, candidacy.candidate
        is_free = term > self.term or (term == self.term and self.choice in (0, candidate))
        if self._has_head or candidacy.order < order or not is_free:
            return False
        self.term, self.choice, self._given = term, candidate, {**self._given, term: candidate}
        return True

    def take_back(self, candidate: Voice, until: int) -> None:
        """Note that a candidate follows another head, and counts no voice of the terms up to *until* any more."""
        self._given = {term: one for term, one in self._given.items() if one != candidate or term > until}


class Part(enum.Enum):
    """An agent's part."""

    FOLLOWS = "follows"
    SEEKS = "seeks"
    RULES = "rules"
    FENCED = "fenced"


class Duty(enum.Enum):
    """An action that is due, see `Succession.due`."""

    STAND = "stand"
    FENCE = "fence"
    LEAVE = "leave"


class Succession(Ballot):
    """The part of one agent.

    Attributes:
        part: what it does.
        head_gone: Slurm's word that the host of the last head has left the job.
        withdrawn: the last term of its candidacies that are over, because it has followed a head since.
    """

    def __init__(self, own: Voice, patience: Patience) -> None:
        super().__init__(own)
        self.part = Part.SEEKS
        self.head_gone = False
        self.withdrawn = 0
        self._patience = patience
        self._voices: set[Voice] = set()
        self._stood = 0  # the term of the last candidacy, once it has been repeated
        self._acknowledged: set[Voice] = set()
        self._since_s = 0.0  # when this part began; for a head: when it heard half of the voices last
        self._stand_s = 0.0
        self._looked_s = 0.0  # when a head looked last which voices it hears
        self._woke_s: float | None = None  # its first look after it stood still, until it hears half of the voices

    # ---- a follower ----

    def follow(self, term: int, head: Voice) -> bool:
        """See `Ballot.follow`; a fenced agent follows no head; its next incarnation does.

        A candidate withdraws: it may have stood for later terms, since nobody had told it of this head.
        """
        if self.part not in (Part.SEEKS, Part.FOLLOWS) or not super().follow(term, head):
            return False
        self.part, self.head_gone, self.withdrawn, self._voices = Part.FOLLOWS, False, self.term, set()
        return True

    def lose_at(self, term: int, head: Voice, now_s: float, noticed_s: float = 0.0) -> bool:
        """See `Ballot.lose`; its successor is sought from here on.

        Args:
            noticed_s: when all others have noticed the loss; they may see only that the head is silent.
        """
        if not self.lose(term, head):
            return False
        self.part, self._since_s = Part.SEEKS, max(now_s, noticed_s)
        self._stand_s = now_s + self._place * self._patience.step_s
        return True

    def give_at(self, candidacy: Candidacy, now_s: float) -> bool:
        """See `Ballot.give`; after that this agent waits before it stands itself."""
        if self.part is not Part.SEEKS or not self.give(candidacy):
            return False
        if candidacy.candidate != self.own:
            self._stand_s = now_s + self._round_s
        return True

    # ---- a candidate ----

    def stand(self, now_s: float) -> Candidacy | None:
        """Become a candidate for the next term; None if this agent cannot.

        Each candidacy is repeated once: others may have noticed the loss later, and those who give their voice in a
        later term cannot follow a head of this one.
        """
        if self.part is not Part.SEEKS or self.electorate is None or self.own not in self.electorate.voters.hosts:
            return None
        self._stand_s = now_s + self._round_s
        if self.choice == self.own and self._stood != self.term and self.own in self._voices:
            self._stood = self.term
        else:
            self.term, self.choice, self._voices = self.term + 1, self.own, {self.own}
        return Candidacy(self.term, self.own, self.electorate.order)

    def see_term(self, term: int) -> None:
        """Note the term of a voter that refused, so that the next candidacy is for a later one."""
        if self.part is Part.SEEKS and term > self.term:
            self.term, self.choice, self._voices = term, 0, set()

    def count(self, term: int, voice: Voice) -> None:
        """Count a voice that was given to this agent."""
        if term == self.term > self.withdrawn and self.choice == self.own and self.part is Part.SEEKS:
            self._voices.add(voice)

    def rule(self, now_s: float) -> bool:
        """Become the head of the term if enough voices were given; False if not, and for one that rules already."""
        if self.part is not Part.SEEKS or self.electorate is None or self.choice != self.own:
            return False
        if not self.electorate.elects(frozenset(self._voices), head_gone=self.head_gone):
            return False
        self._take_office(self.electorate.under(self.term, self.own), now_s)
        return True

    # ---- a head ----

    def found(self, voters: Voters, now_s: float, *, heeds_slurm: bool = False) -> None:
        """Become the head of the first term, which needs no voices; see `Electorate` for the arguments."""
        self.term, self.choice = 1, self.own
        self._take_office(Electorate(1, 1, self.own, voters, heeds_slurm=heeds_slurm), now_s)

    def _take_office(self, electorate: Electorate, now_s: float) -> None:
        self.part, self.electorate, self._since_s, self._looked_s = Part.RULES, electorate, now_s, now_s
        self.followed = self.term, self.own
        self._acknowledged = {self.own}

    def acknowledge(self, order: tuple[int, int], voice: Voice) -> None:
        """Note that a voice knows the electorate of this number."""
        if self.part is Part.RULES and self.electorate is not None and order == self.electorate.order:
            self._acknowledged.add(voice)

    def change(
        self, voters: Voters, *, complete: bool = True, leaving: frozenset[Voice] = frozenset()
    ) -> Electorate | None:
        """Take the next step towards *voters*; return the electorate to announce, None if there is none now.

        Args:
            complete: see `Electorate.follower`.
            leaving: voices that are to be lost, and still acknowledge.
        """
        if self.part is not Part.RULES or self.electorate is None:
            return None
        complete = complete and leaving & self.electorate.voices <= self._acknowledged
        following = self.electorate.follower(voters, frozenset(self._acknowledged), complete=complete)
        if following is not None:
            self.electorate, self._acknowledged = following, {self.own}
        return following

    def hear(self, voices: frozenset[Voice], now_s: float) -> None:
        """Note which voices a head hears, its own among them; call this about every second."""
        if self.part is not Part.RULES or self.electorate is None:
            return
        if self._woke_s is None and self.doubts(now_s):
            self._woke_s = now_s  # links that have ended meanwhile do not show yet
        elif self.electorate.hears(voices):
            self._woke_s, self._since_s = None, now_s
        self._looked_s = now_s

    def doubts(self, now_s: float) -> bool:
        """Tell whether a head stood still for so long that another one may rule, and has not heard the voices since.

        Half of the time for which followers wait counts: its last word to them is older than its last look at them.
        """
        if self.part is not Part.RULES:
            return False
        return self._woke_s is not None or now_s - self._looked_s >= self._patience.silent_s / 2

    # ---- time ----

    def due(self, now_s: float) -> Duty | None:
        """Return what is due; a fenced agent stays fenced."""
        waited_s = now_s - self._since_s
        match self.part:
            case Part.FOLLOWS:
                return None
            case Part.FENCED:
                return Duty.LEAVE if waited_s >= self._patience.rejoin_s else None
            case Part.SEEKS | Part.RULES if waited_s >= self._patience.fence_s and now_s != self._woke_s:
                self.part, self._since_s = Part.FENCED, now_s
                return Duty.FENCE
            case Part.SEEKS if now_s >= self._stand_s:
                return Duty.STAND
        return None

    @property
    def _place(self) -> int:
        """The number of hosts whose turn to stand comes before this one's."""
        if self.electorate is None:
            return 0
        hosts = [voice for voice in self.electorate.voters.hosts if voice != self.electorate.head]
        return hosts.index(self.own) if self.own in hosts else len(hosts)

    @property
    def _round_s(self) -> float:
        """Time until a candidate that was not elected stands again: in the order of ranks, one after the other."""
        return (2 + self._place) * self._patience.step_s
