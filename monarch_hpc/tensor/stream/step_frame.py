"""Keeps the records of an optimizer's step in one frame, so that a rank has all of them before it commits the step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monarch_hpc.tensor.stream.records import UPDATE

if TYPE_CHECKING:
    from monarch_hpc.tensor.stream.engine import TensorEngine, View

__all__ = ["begin_step", "end_step"]

_NUM_INTS = 5


def begin_step(engine: TensorEngine, view: View) -> None:
    """Begin an `UPDATE`, and send nothing until its end: unless a value is read, an object sent, or a view changed."""
    with engine.lock:
        engine.use(view)
        engine.free_dead(view)
        engine.step_begun = len(engine.ints), len(engine.sites)
        engine.threshold = sys.maxsize
        engine.emit(view, [UPDATE, *[0] * (_NUM_INTS - 1)], depth=5)


def end_step(engine: TensorEngine, version: int) -> bool:
    """Note in the `UPDATE` what belongs to it; the caller holds the lock.

    Args:
        version: number of the commit.

    Returns:
        Whether it has records, all in the frame that is being filled; else the `UPDATE` is left empty.
    """
    if engine.step_begun is None:
        return False
    at, place = engine.step_begun
    num_ints, num_ops = len(engine.ints) - at - _NUM_INTS, len(engine.sites) - place - 1
    if num_ints:
        engine.ints[at + 1 : at + _NUM_INTS] = num_ints, num_ops, version, engine.next_value
    engine.step_begun = None
    engine.reset_threshold()
    if len(engine.ints) >= engine.threshold:
        engine.send()
    return num_ints > 0
