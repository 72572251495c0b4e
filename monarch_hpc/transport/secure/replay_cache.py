"""A replay cache: the greetings that a process has answered, so that a recorded one costs it no second answer."""

from __future__ import annotations

__all__ = ["ReplayCache"]

_MAX_KEYS = 16384
"""More than the hosts of the largest machines, which greet the head at once. Two full generations take 3 MiB."""


class ReplayCache:
    """Remembers the last *max_keys* ephemeral keys of greetings, and up to twice as many.

    A key is drawn for one greeting and authenticated by it: a key that comes again is in a recording. Nothing depends
    on a clock, since those of hosts may differ by minutes. After a restart a process may answer a recording once more.
    """

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._recent or key in self._older

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def add(self, key: bytes) -> None:
        """Remember *key*; the oldest ones are forgotten, many at a time."""
        if len(self._recent) >= self._max_keys:
            self._recent, self._older = set(), self._recent
        self._recent.add(key)
