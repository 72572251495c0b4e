"""Slurm's compact lists of host names: ``n[1-4,007-010],login,rack[1-2]-n[1-3]``."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from monarch_hpc.core.errors import ConfigError

__all__ = ["compress", "expand"]

# Ten times the largest Slurm clusters: a list beyond it is a mistake or an attack.
_MAX_HOSTS = 100_000
# Characters of host names. A name must not start with '-', lest it be taken for a command's option.
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_ITEM = re.compile(r"(?:[A-Za-z0-9_.-]|\[[0-9,-]*\])+")
_PART = re.compile(r"\[([^]]*)\]|([^[]+)")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]{1,12})([^0-9]*)", re.DOTALL)


def expand(text: str, max_hosts: int = _MAX_HOSTS) -> list[str]:
    """Return the names that *text* stands for, in its order, duplicates included.

    A range keeps the width of its first number, as in Slurm: ``n[08-10]`` is n08, n09, n10.

    Raises:
        ConfigError: not a host list, or more than *max_hosts* names.
    """
    hosts: list[str] = []
    for item in _items(text):
        choices: list[list[str]] = []
        for match in _PART.finditer(item):
            choices.append(_choices(match, text, max_hosts))
            # Checked before the product is built: a short text can stand for very many names.
            if len(hosts) + math.prod(len(choice) for choice in choices) > max_hosts:
                raise _error(text, f"more than {max_hosts} hosts")
        for parts in itertools.product(*choices):
            name = "".join(parts)
            if not _NAME.fullmatch(name):
                raise _error(text, f"{name!r} is not a host name")
            hosts.append(name)
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """Write *hosts* compactly; `expand` gives the same names back, in the same order.

    Only the last number of a name is folded; sort the names first for the shortest text.

    Raises:
        ConfigError: an element of *hosts* is not a host name.
    """
    words: list[str] = []
    for (prefix, suffix, numbered), group in itertools.groupby((_split(host) for host in hosts), key=_family):
        digits = [number for _, number, _ in group]
        if not numbered:
            words.extend([prefix] * len(digits))
            continue
        ranges = [low if low == high else f"{low}-{high}" for low, high in _ranges(digits)]
        single = len(ranges) == 1 and "-" not in ranges[0]
        words.append(prefix + (ranges[0] if single else f"[{','.join(ranges)}]") + suffix)
    return ",".join(words)


def _items(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    items: list[str] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise _error(text, f"cannot be read from {text[position : position + 20]!r} on")
        items.append(match[0])
        position = match.end()
        if position < len(text):
            if text[position] != "," or position + 1 == len(text):
                raise _error(text, f"cannot be read from {text[position : position + 20]!r} on")
            position += 1
    return items


def _choices(part: re.Match[str], text: str, max_hosts: int) -> list[str]:
    if part[2] is not None:
        return [part[2]]
    choices: list[str] = []
    for piece in part[1].split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _error(text, f"{piece!r} is not a range")
        low, high = match[1], match[2] or match[1]
        count = int(high) - int(low) + 1
        if count < 1:
            raise _error(text, f"the range {piece!r} runs backwards")
        if len(choices) + count > max_hosts:
            raise _error(text, f"more than {max_hosts} hosts")
        choices.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return choices


def _split(host: str) -> tuple[str, str, str]:
    """Split a name around its last number; a name without one is all prefix."""
    if not _NAME.fullmatch(host):
        raise _error(host, f"{host!r} is not a host name")
    match = _NUMBERED.fullmatch(host)
    return (match[1], match[2], match[3]) if match else (host, "", "")


def _family(parts: tuple[str, str, str]) -> tuple[str, str, bool]:
    """The key that names must share to be folded into one word."""
    return parts[0], parts[2], bool(parts[1])


def _ranges(digits: list[str]) -> Iterator[tuple[str, str]]:
    low = high = digits[0]
    for number in digits[1:]:
        if number == f"{int(high) + 1:0{len(low)}d}":
            high = number
        else:
            yield low, high
            low = high = number
    yield low, high


def _error(text: str, problem: str) -> ConfigError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return ConfigError("", shown, f"host list {shown!r}", problem)
