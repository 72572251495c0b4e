"""Imports without garbage collections."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["uncollected"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No automatic garbage collections, which find little in what imports build: a quarter of the time for torch.

    Modules that turn collections off, or set thresholds, keep what they chose.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0, *thresholds[1:])  # collections stay enabled: a module may ask
    try:
        yield
    finally:
        if gc.get_threshold() == (0, *thresholds[1:]):
            gc.set_threshold(*thresholds)
