"""Errors of copies to or from several memories, of which the others are whole."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.core.errors.root import MonarchError

__all__ = ["CopyFailed", "CopyTimeout"]

_MOST_NAMED = 3
"""Failures that the message spells out; all are in `CopyFailed.failures`."""


class CopyFailed(MonarchError):
    """Some memories do not have what they were to get, or could not give it. The others are whole.

    Args:
        what: the copy.
        failures: what happened to each of them, by its index.
    """

    def __init__(self, what: str, failures: Mapping[int, BaseException]) -> None:
        super().__init__(what, dict(failures))
        self.what = what
        self.failures = dict(failures)

    def __str__(self) -> str:
        named = [str(self.failures[index]) for index in sorted(self.failures)]
        more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        return f"{self.what} failed for {len(named)}: {'; '.join(named[:_MOST_NAMED])}{more}"


class CopyTimeout(CopyFailed, TimeoutError):
    """None of them failed, but they were not done in time; the others are whole."""
