"""Summarizes the failures of one call in bounded text: equal ones are merged, different ones named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from monarch_hpc.core.text.description import class_name, notes_of, text_of

__all__ = ["LAST_LINES", "details_of", "origin_of", "summarize"]

LAST_LINES = "; it wrote last:"
"""Stands between a cause of death and the lines that the process wrote last, which a summary leaves out."""

_MAX_DETAIL_CHARS = 16 << 10
"""Longest remote traceback: a screen or two; the failure itself, in `MeshError.failures`, has all of it."""

_MAX_LINE_CHARS = 400
"""Longest message of one exception."""

_MAX_KINDS = 4
"""Number of exceptions named besides the first."""

_MAX_RANKS = 8
"""Number of ranks listed for each exception."""

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def summarize(failures: Mapping[int, BaseException]) -> str:
    """Return *failures*, by rank, in one line and in their order; equal class and text are merged."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, failure in failures.items():
        kinds.setdefault((class_name(failure), _first_line(failure)), []).append(rank)
    parts: list[str] = []
    for (name, line), ranks in list(kinds.items())[: 1 + _MAX_KINDS]:
        also = f" (also on {_listed(ranks[1:])})" if ranks[1:] else ""
        parts.append(f"rank {ranks[0]}: {name}{line and ': '}{line}{also}")
    left = sum(len(ranks) for ranks in list(kinds.values())[1 + _MAX_KINDS :])
    if left:
        parts.append(f"and {left} more ranks with {len(kinds) - 1 - _MAX_KINDS} other exceptions")
    return "; ".join(parts)


def details_of(failure: BaseException) -> str:
    """Return a failure's remote traceback, or else its message beyond the first line; may be empty."""
    notes = notes_of(failure)
    text = "\n".join(notes) if notes else _beyond_first_line(failure)
    if len(text) <= _MAX_DETAIL_CHARS:
        return text
    half = _MAX_DETAIL_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def origin_of(failure: BaseException) -> str:
    """Return where a remote failure was raised: ``file.py:12 in step``; empty if its traceback is unknown."""
    *_, last = ("", "", ""), *_FRAME.findall(details_of(failure))
    file, line, function = last
    return f"{file}:{line} in {function}" if file else ""


def _first_line(failure: BaseException) -> str:
    line = text_of(failure).partition("\n")[0].removesuffix(LAST_LINES)
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}..."


def _beyond_first_line(failure: BaseException) -> str:
    first, _, rest = text_of(failure).partition("\n")
    return f"{LAST_LINES.removeprefix('; ')}\n{rest}" if first.endswith(LAST_LINES) else rest


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MAX_RANKS]))
    more = f", ... {len(ranks)} in all" if len(ranks) > _MAX_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
