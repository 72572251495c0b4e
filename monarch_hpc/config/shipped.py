"""Reads the files that ship in `configs`: as `configs/parsed.json` has them, unless one was changed since.

Every program and command reads a dozen of them. Without PyYAML that takes an eighth of the time, and most users have no
other file that needs it.
"""

from __future__ import annotations

import datetime
import functools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence

from monarch_hpc.config.schema import convert, known_keys
from monarch_hpc.config.setting import Setting
from monarch_hpc.config.site import head_of
from monarch_hpc.core.storage.assets import asset

__all__ = ["PARSED", "checksum", "read_shipped"]

PARSED = "parsed.json"
"""By name of the file: its checksum; the number of settings in its head; and key, value and line of each setting."""


def checksum(text: str) -> int:
    """The checksum of a file's text, by which it is known to be unchanged."""
    return zlib.crc32(text.encode())


@functools.cache
def read_shipped(name: str, *, head: bool) -> tuple[Setting, ...]:
    """Read a file of `configs`, or just its head."""
    text = asset("configs", name).read_text(encoding="utf-8")
    known = _parsed().get(name)
    if known is not None and known[0] == checksum(text):
        return tuple(_restored(known[2][: known[1]] if head else known[2], f"configs/{name}"))
    from monarch_hpc.config.document import parse_document  # late: it loads PyYAML

    return tuple(parse_document(head_of(text) if head else text, f"configs/{name}"))


@functools.cache
def _parsed() -> Mapping[str, tuple[int, int, Sequence[tuple[str, object, int]]]]:
    found: Mapping[str, tuple[int, int, Sequence[tuple[str, object, int]]]]
    found = json.loads(asset("configs", PARSED).read_bytes())
    return found


def _restored(settings: Sequence[tuple[str, object, int]], name: str) -> Iterator[Setting]:
    """Give values the types that JSON does not have."""
    keys = known_keys()
    for key, value, line in settings:
        origin = f"{name}:{line}"
        if key in keys:
            yield Setting(key, convert(key, value, keys[key], origin), origin)
        elif key == "checked":
            yield Setting(key, datetime.date.fromisoformat(str(value)), origin)
        else:
            yield Setting(key, value, origin)
