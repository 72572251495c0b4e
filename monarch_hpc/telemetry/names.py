"""The name table of a recorder: each name is written once, and then referred to by number."""

from __future__ import annotations

import json
import mmap
import struct
from _thread import RLock
from collections.abc import Callable, Mapping

from monarch_hpc.core.text.description import error_class, place_of
from monarch_hpc.telemetry.layout import NAMES_AT, NAMES_BYTES, UNNAMED_AT

__all__ = ["Name", "Names", "key_of", "parse_all_names", "parse_names"]

Name = tuple[str, ...]
"""``("endpoint", actor's name, method)``, ``("proc", incarnation in hex, host)``, ``("text", words)``,
``("error", class, file and line)``, ``("metric", name)``, ``("span", name)`` or ``("tags", JSON)``."""

_MAX_TEXT = 200
"""Longer texts are cut: causes come from user exceptions, and are shown in one line of a table."""

_MAX_TAGS = 1000
"""Longer tags of a metric are left out."""

_OPEN_BYTES = NAMES_BYTES * 3 // 4
"""Part of the table that names of errors, metrics, spans and tags may take: programs can make any number of them, which
must not leave endpoints without names."""

# Made once: `json.dumps` makes an encoder at each call, at twice the cost of the call itself.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode

_USED = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class Names:
    """Writes names; for any thread. Once the table is full, new names have number 0.

    Attributes:
        metrics: numbers of the names of metrics.
        labels: numbers of tags, by `key_of`.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._known: dict[Name, int] = {}
        self.metrics: dict[str, int] = {}
        self.labels: dict[object, int] = {}
        self._used = _USED.size
        self._num_unnamed = 0
        self._lock = RLock()

    def endpoint(self, actor: str, method: str) -> int:
        """Return the number of an endpoint, by name of its actor mesh and method."""
        return self._number(("endpoint", actor[:_MAX_TEXT], method[:_MAX_TEXT]))

    def proc(self, incarnation: int, host: str) -> int:
        """Return the number of a process."""
        return self._number(("proc", f"{incarnation:x}", host[:_MAX_TEXT]))

    def text(self, words: str) -> int:
        """Return the number of a text; only its first line is kept."""
        return self._number(("text", words.partition("\n")[0][:_MAX_TEXT]))

    def operation(self, words: str) -> int:
        """Return the number of the name of an operation, likewise; there may be many."""
        return self._number(("text", words.partition("\n")[0][:_MAX_TEXT]), _OPEN_BYTES)

    def error(self, error: BaseException) -> int:
        """Return the number of the class of an exception and of the line that raised it; never of its text."""
        return self._number(("error", error_class(error), place_of(error)[-_MAX_TEXT:]), _OPEN_BYTES)

    def metric(self, name: str) -> int:
        """Return the number of a metric."""
        number = self.metrics.get(name)
        if number is None:
            number = self._number(("metric", name[:_MAX_TEXT]), _OPEN_BYTES)
            if number and len(name) <= _MAX_TEXT:
                self.metrics[name] = number
        return number

    def span(self, name: str) -> int:
        """Return the number of a span's name."""
        return self._number(("span", name[:_MAX_TEXT]), _OPEN_BYTES)

    def tags(self, tags: Mapping[str, str | int | float | bool]) -> int:
        """Return the number of the tags of a metric or a span; 0 if there are none, or if they are too long."""
        if not tags:
            return 0
        key = key_of(tags)
        number = self.labels.get(key, 0)
        if not number:
            body = _encode_sorted(tags)
            number = self._number(("tags", body), _OPEN_BYTES) if len(body) <= _MAX_TAGS else self._unnamed()
            if number:
                self.labels[key] = number
        return number

    def _number(self, name: Name, limit: int = NAMES_BYTES) -> int:
        number = self._known.get(name)
        return self._add(name, limit) if number is None else number

    def _unnamed(self) -> int:
        self._num_unnamed += 1
        _USED.pack_into(self._memory, UNNAMED_AT, self._num_unnamed)
        return 0

    def _add(self, name: Name, limit: int) -> int:
        body = _encode(name).encode()
        with self._lock:
            if name in self._known:
                return self._known[name]
            end = self._used + _LENGTH.size + len(body)
            if end > limit:
                return self._unnamed()
            at = NAMES_AT + self._used
            self._memory[at : at + _LENGTH.size + len(body)] = _LENGTH.pack(len(body)) + body
            _USED.pack_into(self._memory, NAMES_AT, end)  # last, so that a reader never sees half an entry
            self._used = end
            number = self._known[name] = len(self._known) + 1
            return number


def key_of(tags: Mapping[str, object]) -> tuple[object, ...]:
    """Identify tags: with their types, because 1 == True."""
    if len(tags) == 1:  # a third of the time
        ((tag, value),) = tags.items()
        return tag, value, type(value)
    return *tags.items(), *map(type, tags.values())


def parse_names(table: bytes) -> Callable[[int], Name]:
    """Return a lookup of names by number, empty for unknown numbers. Accepts any bytes."""
    found = parse_all_names(table)
    return lambda number: found[number] if number < len(found) else ()


def parse_all_names(table: bytes) -> list[Name]:
    """Return all names by number, of which the first, 0, is empty. Accepts any bytes."""
    found: list[Name] = [()]
    used = min(_USED.unpack_from(table)[0], len(table)) if len(table) >= _USED.size else 0
    at = _USED.size
    while at + _LENGTH.size <= used:
        end = at + _LENGTH.size + _LENGTH.unpack_from(table, at)[0]
        if end > used:
            break
        found.append(_parse(table[at + _LENGTH.size : end]))
        at = end
    return found


def _parse(body: bytes) -> Name:
    try:
        name = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if isinstance(name, list) and all(type(part) is str for part in name):
        return tuple(name)
    return ()
