"""The lines of the program that issue operations: found in a microsecond, and put into words only for errors."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import CodeType

import torch

__all__ = ["Site", "line_of", "site_here"]

Site = tuple[CodeType, int]
"""A function and the place in its bytecode."""

_SKIPPED = (os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parents[2]) + os.sep, "<frozen ")
_inner: dict[CodeType, bool] = {}


def site_here(depth: int) -> Site:
    """The innermost place outside of torch and this package.

    Args:
        depth: frames to skip, as of `sys._getframe`.
    """
    frame = sys._getframe(depth)
    inner = _inner
    while True:
        code = frame.f_code
        skip = inner.get(code)
        if skip is None:
            skip = inner[code] = code.co_filename.startswith(_SKIPPED)
        if not skip or frame.f_back is None:
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
