"""Text that a process can be given."""

from __future__ import annotations

import os

__all__ = ["is_word"]


def is_word(text: str) -> bool:
    """Tell whether *text* can be an argument, a path, or the value of a variable."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
