"""Imports without garbage collections."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["uncollected"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No automatic garbage collections, which find little in what imports build: a quarter of the time for torch.

    All that was built counts as old after that: the next collection would go through it once more, which takes as long
    as a tenth of the imports. Modules that turn collections off, or set thresholds, keep what they chose.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0, *thresholds[1:])  # collections stay enabled: a module may ask
    try:
        yield
    finally:
        if gc.get_threshold() == (0, *thresholds[1:]):
            # A collection would come at once. To count what is frozen goes through all of it.
            if 0 < thresholds[0] < gc.get_count()[0] and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.set_threshold(*thresholds)
