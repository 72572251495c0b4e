"""A mapping that keeps its latest entries: for causes and names that are asked for soon after, or never."""

from __future__ import annotations

import _thread
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The latest *limit* entries; for any thread. An entry keeps its place when it is written again."""

    __slots__ = ("_entries", "_limit", "_lock")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[K, V] = {}
        self._lock = _thread.allocate_lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._entries[key] = value
            if len(self._entries) > self._limit:
                del self._entries[next(iter(self._entries))]

    def setdefault(self, key: K, value: V) -> V:
        """Return the entry of *key*; *value*, which is kept, where there is none."""
        known = self._entries.get(key)
        if known is None:
            self[key] = known = value
        return known

    def forget(self, key: K) -> None:
        """Keep the entry of *key* no longer, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def get(self, key: K) -> V | None:
        """The entry of *key*; None where there is none, or no longer."""
        return self._entries.get(key)
