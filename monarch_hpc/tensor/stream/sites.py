"""The lines of the program that issue operations: found in a microsecond, and put into words only for errors."""

from __future__ import annotations

import linecache
import os
import sys
from array import array
from pathlib import Path
from types import CodeType

import torch

__all__ = ["Site", "SiteLines", "line_of", "site_here"]

Site = tuple[CodeType, int]
"""A function and the place in its bytecode."""

_SKIPPED = (os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parents[2]) + os.sep, "<frozen ")
_inner: dict[int, tuple[bool, CodeType]] = {}
"""Answers to "is this function skipped?" by the identity of its code, whose hash would take longer than all else."""


_MAX_LINES = 4096
"""Number of lines that ranks are told; programs with more make code at run time."""


class SiteLines:
    """Numbers the lines of a program, whose texts each rank gets once, for `monarch-hpc status --calls`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._kept: list[CodeType] = []
        self._known: dict[tuple[int, ...], int] = {}
        self._lines: list[str] = []
        self._last: tuple[list[Site], bytes] = [], b""

    def of(self, sites: list[Site], ranks: tuple[int, ...]) -> tuple[int, tuple[str, ...], bytes]:
        """What a frame says about the lines of its operations.

        Args:
            sites: the lines.
            ranks: where it goes.

        Returns:
            The number of the first line that is told, the lines from there on, and the number of each operation's
            line, from 1; 0 for one that is not told.
        """
        first = self._known.get(ranks, 0)
        if sites != self._last[0]:  # loops have the same ones, to compare which takes no time
            self._last = sites, self._numbers_of(sites)
        self._known[ranks] = len(self._lines)
        return first, tuple(self._lines[first:]), self._last[1]

    def _numbers_of(self, sites: list[Site]) -> bytes:
        numbers = self._numbers
        try:
            found = [numbers[id(code), last] for code, last in sites]
        except KeyError:
            found = [self._number(site) for site in sites]
        return array("H", found).tobytes()

    def _number(self, site: Site) -> int:
        code, last = site
        number = self._numbers.get((id(code), last))
        if number is None:
            if len(self._lines) >= _MAX_LINES:
                return 0
            self._kept.append(code)  # so that its identity remains its own
            self._lines.append(line_of(site))
            number = self._numbers[id(code), last] = len(self._lines)
        return number


def site_here(depth: int) -> Site:
    """The innermost place outside of torch and this package.

    Args:
        depth: frames to skip, as of `sys._getframe`.
    """
    frame = sys._getframe(depth)
    inner = _inner
    while True:
        code = frame.f_code
        known = inner.get(id(code))
        if known is None:
            known = inner[id(code)] = code.co_filename.startswith(_SKIPPED), code
        if not known[0] or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


def line_of(site: Site) -> str:
    """File, line, function and source of a place."""
    code, last = site
    line = code.co_firstlineno
    for begin, end, number in code.co_lines():
        if begin <= last < end and number is not None:
            line = number
    source = linecache.getline(code.co_filename, line).strip()
    place = f"{code.co_filename}:{line} in {code.co_name}"
    return f"{place}: {source}" if source else place
