"""The name table of a recorder: each name is written once, and then referred to by number."""

from __future__ import annotations

import json
import mmap
import struct
from _thread import allocate_lock
from collections.abc import Callable

from monarch_hpc.telemetry.layout import NAMES_AT, NAMES_BYTES

__all__ = ["Name", "Names", "parse_names"]

Name = tuple[str, ...]
"""``("endpoint", actor's name, method)``, ``("proc", incarnation in hex, host)`` or ``("text", words)``."""

_MAX_TEXT = 200
"""Longer texts are cut: causes come from user exceptions, and are shown in one line of a table."""

_USED = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class Names:
    """Writes names; for any thread. Once the table is full, new names have number 0."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._known: dict[Name, int] = {}
        self._used = _USED.size
        self._lock = allocate_lock()

    def endpoint(self, actor: str, method: str) -> int:
        """Return the number of an endpoint, by name of its actor mesh and method."""
        return self._number(("endpoint", actor[:_MAX_TEXT], method[:_MAX_TEXT]))

    def proc(self, incarnation: int, host: str) -> int:
        """Return the number of a process."""
        return self._number(("proc", f"{incarnation:x}", host[:_MAX_TEXT]))

    def text(self, words: str) -> int:
        """Return the number of a text; only its first line is kept."""
        return self._number(("text", words.partition("\n")[0][:_MAX_TEXT]))

    def _number(self, name: Name) -> int:
        number = self._known.get(name)
        return self._add(name) if number is None else number

    def _add(self, name: Name) -> int:
        body = json.dumps(name, separators=(",", ":")).encode()
        with self._lock:
            if name in self._known:
                return self._known[name]
            end = self._used + _LENGTH.size + len(body)
            if end > NAMES_BYTES:
                return 0
            at = NAMES_AT + self._used
            self._memory[at : at + _LENGTH.size + len(body)] = _LENGTH.pack(len(body)) + body
            _USED.pack_into(self._memory, NAMES_AT, end)  # last, so that a reader never sees half an entry
            self._used = end
            number = self._known[name] = len(self._known) + 1
            return number


def parse_names(table: bytes) -> Callable[[int], Name]:
    """Return a lookup of names by number, empty for unknown numbers. Accepts any bytes."""
    found: list[Name] = [()]
    used = min(_USED.unpack_from(table)[0], len(table)) if len(table) >= _USED.size else 0
    at = _USED.size
    while at + _LENGTH.size <= used:
        end = at + _LENGTH.size + _LENGTH.unpack_from(table, at)[0]
        if end > used:
            break
        found.append(_parse(table[at + _LENGTH.size : end]))
        at = end
    return lambda number: found[number] if number < len(found) else ()


def _parse(body: bytes) -> Name:
    try:
        name = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if isinstance(name, list) and all(type(part) is str for part in name):
        return tuple(name)
    return ()
