"""A replay cache: the hellos that a process has answered, so that a recorded hello is not answered again."""

from __future__ import annotations

__all__ = ["ReplayCache"]

_MAX_KEYS = 16384
"""More than the hosts of the largest machines, which all dial the head at once. Two full generations take 3 MiB."""


class ReplayCache:
    """Remembers the ephemeral keys of at least the last *max_keys* hellos, and at most twice as many.

    A key is generated for one hello and authenticated by it: a repeated key means a recording. Nothing depends on
    clocks, which may differ by minutes between hosts. After a restart a process may answer a recording once more.
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
        """Remember *key*; the oldest keys are dropped in bulk."""
        if len(self._recent) >= self._max_keys:
            self._recent, self._older = set(), self._recent
        self._recent.add(key)
