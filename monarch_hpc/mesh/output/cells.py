"""Shows the output of procs in a notebook under the cell that caused it.

Output takes its own way to the program, and arrives a moment after the answers of calls; by then the notebook may run
the next cell. So each cell ends only once the output of its calls is there.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Sequence
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["NotebookCells", "running_shell"]

_END_S = 1.0
"""Limit on how long a host that does not answer, or a flood of output, delays the end of a cell."""


class NotebookCells:
    """The cells of the notebook that this program is; does nothing outside of one.

    Args:
        flush: has the agents send what the procs have written; returns a future for each mesh.
    """

    def __init__(self, engine: Engine, printer: Printer, flush: Callable[[], Sequence[Future[None]]]) -> None:
        self._engine = engine
        self._printer = printer
        self._flush = flush
        self._shell = running_shell()
        if self._shell is not None:
            self._begin()
            self._shell.events.register("pre_run_cell", self._begin)
            self._shell.events.register("post_run_cell", self._end)

    def close(self) -> None:
        """Leave the notebook alone; output that is left is printed under the cell that runs."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.events.unregister("pre_run_cell", self._begin)
            shell.events.unregister("post_run_cell", self._end)

    def _begin(self, *_info: object) -> None:
        # The kernel keeps the cell that output belongs to in context variables.
        self._printer.context = contextvars.copy_context()

    def _end(self, *_result: object) -> None:
        if self._engine.driving or self._engine.closed or self._engine.forked_from:
            return
        end_s = self._engine.clock() + _END_S
        flushes = self._flush()
        if flushes and self._engine.wait(lambda: all(each.done() for each in flushes), _END_S):
            self._printer.flush(max(end_s - self._engine.clock(), 0.0))


def running_shell() -> Any:
    """IPython's shell, if this program runs in the kernel of a notebook, else None."""
    # Not imported: a program that has not loaded IPython is not a notebook.
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = find() if callable(find) else None
    return shell if getattr(shell, "kernel", None) is not None else None
