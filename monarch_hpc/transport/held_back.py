"""The calls of a channel that wait for credit."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.credit import Credit, take_credit
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["HeldBack"]

_log = Logger(__name__)


class HeldBack:
    """Takes credit for calls, measures how long they wait for it, and reports the first long wait for each actor.

    Args:
        peer: where the actors are.
        broken: whether the channel has ended.
    """

    def __init__(self, engine: Engine, credit: Credit, peer: Peer, broken: Callable[[], bool]) -> None:
        self._engine = engine
        self._credit = credit
        self._peer = peer
        self._broken = broken
        self._since: dict[object, float] = {}  # of each wait, when it began
        self._ended_s = 0.0
        self._warned: set[int] = set()

    @property
    def total_s(self) -> float:
        """Time in seconds that all calls have waited."""
        now_s = self._engine.clock()
        return self._ended_s + sum(now_s - since_s for since_s in list(self._since.values()))

    def take_credit(self, dest: int, cost: int, end_s: float | None) -> bool:
        """Take credit as `transport.credit.take_credit` does, waiting for it."""
        wait = object()
        self._since[wait] = self._engine.clock()
        try:
            return take_credit(
                self._engine,
                self._credit,
                dest,
                cost,
                end_s,
                broken=self._broken,
                on_late=lambda waited_s: self._warn(dest, waited_s),
            )
        finally:
            self._ended_s += self._engine.clock() - self._since.pop(wait)

    def _warn(self, dest: int, waited_s: float) -> None:
        if dest not in self._warned:
            self._warned.add(dest)
            _log.warning(
                "calls to actor %x of %s are held back: its mailbox is full (config key 'transport.mailbox_bytes'); "
                "one has waited for %.0f s",
                dest,
                self._peer,
                waited_s,
            )
