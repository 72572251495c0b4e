"""Keeps channels to heads, and how questions in SQL are answered, for the next question of a program."""

from __future__ import annotations

import contextlib
import itertools
from _thread import allocate_lock
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.core.recent import Recent
from monarch_hpc.telemetry.sql.given import TakenQuestion
from monarch_hpc.telemetry.sql.plan import is_lasting

__all__ = ["KeptQuestions"]

_KEEP_PLANS = 64
"""Of a few kB each."""


class KeptQuestions:
    """Channels and plans for the next question of this process; for any thread."""

    def __init__(self) -> None:
        self._idle: dict[Path, tuple[int, HeadClient]] = {}
        self._numbers = itertools.count(1)
        self._plans: Recent[str, TakenQuestion] = Recent(_KEEP_PLANS)
        self._lock = allocate_lock()
        self._closed = False

    def plan(self, sql: str) -> TakenQuestion | None:
        """Return how a question is answered, if that is known."""
        return self._plans.get(sql)

    def keep_plan(self, sql: str, taken: TakenQuestion) -> None:
        """Keep how a question is answered, unless that is about the present moment."""
        if is_lasting(sql):
            self._plans[sql] = taken

    @contextlib.contextmanager
    def head(self, directory: Path) -> Iterator[HeadClient]:
        """Lend a channel to the head of an allocation to the block."""
        with self._lock:
            lent = self._idle.pop(directory, None) or (next(self._numbers), HeadClient(directory))
            lost = [client for _, client in self._idle.values() if client.is_lost]
            self._idle = {place: one for place, one in self._idle.items() if not one[1].is_lost}
        for one in lost:
            one.close()
        try:
            yield lent[1]
        finally:
            with self._lock:
                others = [lent, *filter(None, [self._idle.pop(directory, None)])]
                if not self._closed:  # of two, the older one stays
                    others.sort(key=lambda one: one[0])
                    self._idle[directory] = others.pop(0)
            for _, client in others:
                client.close()

    def close(self) -> None:
        """Close the channels; those that are lent, when they come back."""
        with self._lock:
            self._closed, idle = True, [client for _, client in self._idle.values()]
            self._idle.clear()
        for one in idle:
            one.close()
