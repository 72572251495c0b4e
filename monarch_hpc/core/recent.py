"""A mapping that keeps only its latest entries, for causes and names that are looked up soon or never."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The latest *limit* entries; thread-safe. An entry that is written again keeps its position."""

    __slots__ = ("_entries", "_limit", "_lock")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[K, V] = {}
        self._lock = allocate_lock()

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

    def pop(self, key: K) -> V | None:
        """Remove and return the entry of *key*; None if there is none."""
        with self._lock:
            return self._entries.pop(key, None)

    def setdefault(self, key: K, value: V) -> V:
        """Return the entry of *key*; if there is none, store and return *value*."""
        known = self._entries.get(key)
        if known is None:
            self[key] = known = value
        return known

    def forget(self, key: K) -> None:
        """Drop the entry of *key*, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def get(self, key: K) -> V | None:
        """The entry of *key*; None if there never was one, or it was dropped."""
        return self._entries.get(key)
