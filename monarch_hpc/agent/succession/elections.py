"""Carries out an agent's part in a succession: asks for voices and gives its own, and keeps the head's electorate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from monarch_hpc.agent.head.link import ChannelLink, Link
from monarch_hpc.agent.succession.slurm_word import SlurmWord
from monarch_hpc.allocation.heads import HeadPlace
from monarch_hpc.config.schema import LivenessConfig
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.announcement import announcement_of, electorate_of
from monarch_hpc.supervision.electorate import Voice, Voters
from monarch_hpc.supervision.succession import Candidacy, Duty, Part, Patience, Succession
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.runs import OpenRun
from monarch_hpc.wire.control.succession import Acknowledge, Announce, AskVoice, GiveVoice, Rules
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Elections", "ElectionsEnd"]

_STEP_S = 0.5
"""Between the turns of two candidates: several times what dialling all hosts and their answers take."""

_TICK_S = 0.1
"""Interval of looks at what is due while a head is sought."""

_ASKING = 8
"""Number of hosts below an agent's own up to which it asks Slurm: a thousand agents must not."""

_CHANGE_S = 1.0
"""Interval at which a head brings its electorate up to date."""

_HAND_OVER_S = 2.0
"""Time that agents have to acknowledge the last electorate of a head that ends; they take milliseconds."""

_HAND_OVER_LOOK_S = 0.01

_log = Logger(__name__)


class Electors(Protocol):
    """The links of a head to those who have a voice."""

    def agents(self) -> Sequence[Link]:
        """The agents, this one among them, by rank."""
        ...

    def owner(self) -> Link | None:
        """The owner of the oldest open run, if it has a voice."""
        ...

    def voters(self) -> Sequence[Link]:
        """Those of the agents that do not leave."""
        ...

    @property
    def complete(self) -> bool:
        """Whether no other agent may still come."""
        ...


@dataclass(frozen=True, slots=True)
class ElectionsEnd:
    """What the agent does when a succession has gone on.

    Args:
        take_office: it has become the head of a term.
        follow: another agent has.
        fence: it must stop, for the given reason.
    """

    take_office: Callable[[int], None]
    follow: Callable[[HeadPlace], None]
    fence: Callable[[str], None]


class Elections:
    """One agent's part. All methods must be called on the engine's driver.

    Args:
        own: this host.
        slurm: asked where the other voices are not enough.
    """

    def __init__(
        self, engine: Engine, node: Node, own: HostEntry, liveness: LivenessConfig, slurm: SlurmWord, end: ElectionsEnd
    ) -> None:
        self._engine = engine
        self._node = node
        self._own = own
        self._liveness = liveness
        self._slurm = slurm
        self._end = end
        self._part = Succession(node.identity.incarnation, Patience(_STEP_S, liveness.fence_s, 0.0, liveness.dead_s))
        self._place: HeadPlace | None = None
        self._hosts: dict[int, HostEntry] = {}
        self._dialled: dict[int, FrameChannel] = {}  # by rank, to ask other agents
        self._candidacy: Candidacy | None = None  # the last one of this agent
        self._owners: list[FrameChannel] = []  # of runs, which have lost the head and offer their voice
        self._electors: Electors | None = None  # once this agent is the head
        self._doubtful: list[Callable[[], None]] = []
        self._over = False
        self.last_head = -1
        """Rank of the host whose head this one follows; -1 for the first one."""
        self.has_resigned = False
        """Whether the last head that was lost has resigned, with all hosts of its Slurm job."""

    def close(self) -> None:
        """Take no part any more: this agent ends."""
        self._over = True

    @property
    def hosts(self) -> list[HostEntry]:
        """The other hosts that the head has named."""
        return list(self._hosts.values())

    # ---- a follower ----

    def on_roster(self, hosts: Sequence[HostEntry]) -> None:
        """Learn the addresses and jobs of other agents."""
        self._slurm.note_hosts(hosts)
        self._hosts.update({host.rank: host for host in hosts if host.rank != self._own.rank})

    def follow(self, place: HeadPlace, head: Voice) -> bool:
        """Follow a head; False if its term is over."""
        if not self._part.follow(place.term, head):
            return False
        self._place = place
        if self._candidacy is not None:  # those who gave their voices could follow no head of an earlier term
            self._candidacy = None
            for channel in (*self._dialled.values(), *self._owners):
                self._tell_place(channel)
        return True

    def seek(self, why: str, heard_s: float, *, resigned: bool = False) -> bool:
        """Seek an heir of the head, whose last message came at *heard_s*; False if none can be elected.

        Args:
            resigned: whether it has said so: then it rules no more, as if Slurm had said that its host is gone.
        """
        electorate = self._part.electorate
        if electorate is None:
            return False
        if not electorate.closed and not electorate.elects(electorate.voices, head_gone=True):
            return False
        now_s, noticed_s = self._engine.clock(), heard_s + self._liveness.dead_s
        if self._part.lose_at(*self._part.followed, now_s, noticed_s):
            _log.warning("lost the head, an heir is elected: %s", why)
            self._part.head_gone = self.has_resigned = resigned
            self._engine.call_later(_TICK_S, self._tick)  # others notice a moment later
        return True

    # ---- a candidate ----

    def _tick(self) -> None:
        if self._over or self._part.part is not Part.SEEKS:
            return
        duty = self._part.due(self._engine.clock())
        if duty is Duty.FENCE:
            self._end.fence(f"no head for {self._liveness.fence_s:g} s (config key 'liveness.fence_s')")
            return
        if duty is Duty.STAND and (candidacy := self._part.stand(self._engine.clock())) is not None:
            self._candidacy = candidacy
            for rank in self._hosts:
                self._ask(rank, candidacy)
            for owner in self._owners:
                _send(owner, AskVoice(candidacy.term, *candidacy.order))
            self._rule_if_elected()  # the own voice may be enough
            self._heed_slurm()
        self._engine.call_later(_TICK_S, self._tick)

    def _heed_slurm(self) -> None:
        """Ask Slurm whether the head's host is gone; one of the first candidates does, for all of them."""
        head = None if self._place is None else self._hosts.get(self._place.rank)
        before = sum(rank < self._own.rank for rank in self._hosts)
        if head is None or before > _ASKING or self._part.part is not Part.SEEKS:
            return

        def gone() -> None:
            if self._part.part is Part.SEEKS and not self._part.head_gone:
                _log.warning("Slurm says that %s, with the head, has left the job", head.name)
                self._part.head_gone = True

        self._slurm.ask(head.name, gone)

    def _ask(self, rank: int, candidacy: Candidacy) -> None:
        channel = self._dialled.get(rank)
        if channel is not None and channel.error is None:
            _send(channel, AskVoice(candidacy.term, *candidacy.order))
            return

        def dialled(result: FrameChannel | TransportError) -> None:
            if isinstance(result, TransportError):
                return
            self._dialled[rank] = result
            if (mine := self._candidacy) is not None and self._part.part is Part.SEEKS:
                _send(result, AskVoice(mine.term, *mine.order))
            else:  # somebody has been elected meanwhile, perhaps this agent
                self._tell_place(result)

        self._node.dial(self._hosts[rank].addresses, 0, dialled)

    def _tell_place(self, channel: FrameChannel) -> None:
        """Tell another agent or an owner who rules, if this agent knows, and that it has withdrawn."""
        place, (term, head) = self._place, self._part.followed
        if place is not None and place.term == term and self._part.part in (Part.FOLLOWS, Part.RULES):
            _send(channel, Rules(term, str(head), place.rank, place.addresses, self._part.withdrawn))

    def on_channel(self, channel: FrameChannel) -> bool:
        """Take the channel of the owner of a run, which offers its voice; False for other peers."""
        electorate = self._part.electorate
        if self._over or electorate is None or channel.peer.role is not Role.CONTROLLER:
            return False
        if channel.peer.incarnation not in electorate.owners:
            return False
        self._owners = [owner for owner in self._owners if owner.error is None] + [channel]
        mine = self._candidacy
        if mine is not None and (mine.term, mine.candidate) == (self._part.term, self._part.choice):
            _send(channel, AskVoice(mine.term, *mine.order))
        return True

    def on_frame(self, channel: FrameChannel, frame: Frame) -> bool:
        """Handle a message of an agent or owner that is no head of this one, nor follows it; False for other frames."""
        is_owner = channel in self._owners
        if frame.kind is not Kind.CONTROL or not (is_owner or channel.peer.role is Role.AGENT):
            return False
        try:
            message = decode(frame.body)
        except FrameError:
            return False
        return (not is_owner or isinstance(message, GiveVoice)) and self.on_message(channel, message)

    def on_message(self, channel: FrameChannel, message: Message) -> bool:
        """Handle a message of another agent; False if it is not about a succession."""
        voice, now_s = channel.peer.incarnation, self._engine.clock()
        match message:
            case AskVoice() | GiveVoice() | Rules() | Announce() | Acknowledge() if self._over:
                return True
            case Announce():
                if self._part.announce(electorate_of(message, voice)):
                    _send(channel, Acknowledge(message.term, message.number))
            case Acknowledge():
                self._part.acknowledge((message.term, message.number), voice)
                self._change()
            case AskVoice():
                order = message.electorate_term, message.electorate_number
                given = self._part.give_at(Candidacy(message.term, voice, order), now_s)
                _send(channel, GiveVoice(message.term, given, self._part.term))
                if not given:
                    self._tell_place(channel)
            case GiveVoice(given=True) if self._part.part is Part.SEEKS:
                self._part.count(message.term, voice)
                self._rule_if_elected()
            case GiveVoice(given=True):  # too late: it waits for this candidate to be elected
                self._tell_place(channel)
            case GiveVoice():
                self._part.see_term(message.known_term)
            case Rules():
                self._part.take_back(voice, message.withdrawn)
                place, electorate = HeadPlace(message.term, message.rank, message.addresses), self._part.electorate
                if self._part.part is not Part.SEEKS or (electorate is not None and place.term <= electorate.term):
                    return True  # of the head that this agent has lost, by one that has not noticed its end yet
                if self.follow(place, int(message.head)):
                    self._end.follow(place)
            case _:
                return False
        return True

    # ---- a head ----

    def found(self, electors: Electors) -> None:
        """Become the head of the first term, unless this agent is a head already."""
        if self._part.part is Part.SEEKS:
            self._place = HeadPlace(1, self._own.rank, self._own.addresses)
            voters, now_s = self._voters(electors), self._engine.clock()
            self._part.found(voters, now_s, heeds_slurm=self._slurm.counts)
            self._announce(electors)
            self.lead(electors)

    def _rule_if_elected(self) -> None:
        if not self._part.rule(self._engine.clock()):
            return
        if self._place is not None:
            self.last_head = self._place.rank
        place = self._place = HeadPlace(self._part.term, self._own.rank, self._own.addresses)
        _log.warning("this agent is the head of term %d", place.term)
        self._end.take_office(place.term)
        for channel in self._dialled.values():
            self._tell_place(channel)

    def greet(self, link: Link) -> None:
        """Tell an agent that follows this one of the electorate, once there is one."""
        electorate = self._part.electorate
        if self._part.part is Part.RULES and electorate is not None and isinstance(link, ChannelLink):
            link.send(announcement_of(electorate))

    def on_client(self, link: Link, message: Message) -> None:
        """Tell the owner of a run that has opened it of the electorate, which may have its voice already."""
        if isinstance(message, OpenRun) and self._electors is not None and self._electors.owner() is link:
            self.greet(link)

    def _announce(self, electors: Electors) -> None:
        owner = electors.owner()
        for link in electors.agents() if owner is None else (*electors.agents(), owner):
            self.greet(link)

    def lead(self, electors: Electors) -> None:
        """As the head, keep the electorate up to date with the linked agents, and stop in a minority."""
        if self._over or self._part.part is not Part.RULES:
            return
        now_s = self._engine.clock()
        self._part.hear(self._heard(electors), now_s)
        if self._part.due(now_s) is Duty.FENCE:
            limit = f"{self._liveness.fence_s:g} s (config key 'liveness.fence_s')"
            self._end.fence(f"less than half of the voices that elect a head have answered for {limit}")
            return
        self._electors = electors
        if not self._part.doubts(now_s):
            held, self._doubtful = self._doubtful, []
            for report in held:
                report()
        self._change()
        self._engine.call_later(_CHANGE_S, partial(self.lead, electors))

    def when_sure(self, report: Callable[[], None]) -> None:
        """As the head, report that an agent is lost: at once, unless this agent stood still and may rule no more.

        Then the agents may have followed another head, which is why their links ended. The report is made once half of
        the voices are heard again, and never if they are not.
        """
        if self._part.doubts(self._engine.clock()):
            self._doubtful.append(report)
        else:
            # First: the owner of a run learns of the change before it may end because of the loss.
            self._change()
            report()

    def _change(self) -> None:
        if self._electors is None or self._over:
            return
        last = self._part.electorate
        voters = self._voters(self._electors)
        leaving = self._heard(self._electors) - voters.all
        electorate = self._part.change(voters, complete=self._electors.complete, leaving=leaving)
        if electorate is None or last is None:
            return
        self._announce(self._electors)
        if electorate.closed and not last.closed:
            _log.warning("no heir of this head can be elected any more: half of the hosts have gone at once")
        elif last.before is not None and last.before.hosts != electorate.voters.hosts:  # runs come and go more often
            _log.info("%d hosts elect the next head", len(electorate.voters.hosts))

    def hand_over(self, done: Callable[[bool], None], late: Deadline | None = None) -> None:
        """As a head that ends, bring the electorate up to date; call *done* once, with whether it can elect an heir."""
        late = late or Deadline(_HAND_OVER_S, self._engine.clock)
        self._change()
        electorate, electors = self._part.electorate, self._electors
        if self._over or electors is None or electorate is None or electorate.closed:
            done(False)
        elif late.passed() or (electorate.before is None and electorate.voters == self._voters(electors)):
            done(True)
        else:
            self._engine.call_later(_HAND_OVER_LOOK_S, partial(self.hand_over, done, late))

    def _heard(self, electors: Electors) -> frozenset[Voice]:
        return frozenset(map(self._voice, (*electors.agents(), electors.owner()))) - {0}

    def _voters(self, electors: Electors) -> Voters:
        hosts = tuple(voice for link in electors.voters() if (voice := self._voice(link)))
        return Voters(hosts, self._voice(electors.owner()) if self._slurm.counts else 0)

    def _voice(self, link: Link | None) -> Voice:
        """The voice of a peer; 0 if its link has ended, or there is none."""
        if not isinstance(link, ChannelLink):
            return 0 if link is None else self._part.own
        return link.channel.peer.incarnation if link.channel.error is None else 0


def _send(channel: FrameChannel, message: Message) -> None:
    with contextlib.suppress(TransportError):  # its end is reported
        channel.send(Frame(Kind.CONTROL, body=encode(message)))
