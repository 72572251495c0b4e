"""The voice of a run's owner in the election of the next head, see `supervision.succession`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial

from monarch_hpc.core.errors import TransportError
from monarch_hpc.supervision.announcement import electorate_of
from monarch_hpc.supervision.succession import Ballot, Candidacy
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.succession import Acknowledge, Announce, AskVoice, GiveVoice, Rules
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["OwnerVoice"]

_DIAL_S = 0.5
"""Interval at which hosts are dialled that do not answer: the time between the turns of two candidates."""


class OwnerVoice:
    """Gives the owner's voice to candidates, whom it dials once its head is gone. To be used on the engine's driver.

    Candidates do not dial it: owners do not listen.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ballot = Ballot(node.identity.incarnation)
        self._hosts: dict[int, HostEntry] = {}
        self._channels: dict[int, FrameChannel | None] = {}  # to hosts, by rank; None while one is dialled
        self._offers = 0  # counts the losses of heads

    def note_hosts(self, hosts: Iterable[HostEntry]) -> None:
        """Learn the addresses of agents."""
        self._hosts.update({host.rank: host for host in hosts})

    def take(self, channel: FrameChannel, message: Message, head: FrameChannel) -> bool:
        """Handle a message of the head or of a candidate; False if it is not about an election."""
        voice = channel.peer.incarnation
        match message:
            case Announce():
                if channel is head and self.follow(message.term, voice):
                    electorate = electorate_of(message, voice)
                    if self._ballot.announce(electorate):
                        _send(channel, Acknowledge(message.term, message.number))
            case AskVoice():
                order = message.electorate_term, message.electorate_number
                given = self._ballot.give(Candidacy(message.term, voice, order))
                _send(channel, GiveVoice(message.term, given, self._ballot.term))
            case Rules():  # the program finds the head by itself
                self._ballot.take_back(voice, message.withdrawn)
            case _:
                return False
        return True

    def follow(self, term: int, head: int) -> bool:
        """Follow a head, and offer the voice no longer; False if its term is over."""
        if not self._ballot.follow(term, head):
            return False
        self._offers += 1
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            if channel is not None:
                channel.close("a head rules")
        return True

    def offer(self, lost_rank: int) -> None:
        """Offer the voice to all hosts but the one whose head is lost."""
        self._ballot.lose(*self._ballot.followed)
        self._offers += 1
        self._dial(lost_rank, self._offers)

    def _dial(self, lost_rank: int, offer: int) -> None:
        if offer != self._offers or self._ballot.electorate is None:
            return
        for rank, host in self._hosts.items():
            known = self._channels.get(rank)
            if rank == lost_rank or (rank in self._channels and (known is None or known.error is None)):
                continue
            self._channels[rank] = None
            self._node.dial(host.addresses, 0, partial(self._on_dialled, rank, offer))
        self._node.engine.call_later(_DIAL_S, partial(self._dial, lost_rank, offer))

    def _on_dialled(self, rank: int, offer: int, result: FrameChannel | TransportError) -> None:
        if isinstance(result, TransportError):
            self._channels.pop(rank, None)
        elif offer == self._offers:
            self._channels[rank] = result
        else:
            result.close("a head rules")


def _send(channel: FrameChannel, message: Message) -> None:
    with contextlib.suppress(TransportError):  # its end is reported
        channel.send(Frame(Kind.CONTROL, body=encode(message)))
