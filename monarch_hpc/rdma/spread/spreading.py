"""The future of copies to or from several memories, which begin together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import CopyFailed, CopyTimeout
from monarch_hpc.rdma.spread.copying import Copying
from monarch_hpc.transport.pulls.pull import REPORT_S

__all__ = ["Spreading"]

_GRACE_S = 0.9
"""Time in which receivers answer that they write no more; one that does not run learns it before later messages."""

_EACH_S = 1e-4
"""For so many seconds of each receiver one report: a third of a processor, if there are ten thousand of them."""


class Spreading(Future[None]):
    """Done when all copies have ended; it fails with what happened to each receiver that does not have all bytes.

    Args:
        what: describes it, for errors.
        timeout_s: time limit in seconds; None for none.
        make: makes the copies; gets a function that they call after each event, and the time between reports.
        num_receivers: of all copies together.
    """

    def __init__(
        self,
        runtime: Runtime,
        what: str,
        timeout_s: float | None,
        make: Callable[[Callable[[Copying], None], float], Sequence[Copying]],
        num_receivers: int,
    ) -> None:
        super().__init__(runtime.engine, lambda: what)
        self._runtime = runtime
        self._what = what
        self._timeout_s = timeout_s
        self._began = False
        self._ending = False
        self._late = False
        self._unwanted = False
        self._report_s = max(REPORT_S, num_receivers * _EACH_S)
        self._copies = make(self._changed, self._report_s)
        # The copies that the current step waits for: an event concerns one of them, and there may be ten thousand.
        self._awaited_copies = set(self._copies)

    def begin(self) -> None:
        """Begin; from any thread."""
        if self._timeout_s is not None:
            self._runtime.deadlines.add(self._timeout_s, self)
        for copy in self._copies:
            copy.open()
        self._engine.call_soon(self._look)

    def _look(self) -> None:
        if not self.done():
            for copy in self._copies:
                copy.look()
            self._engine.call_later(self._report_s, self._look)

    def _changed(self, copy: Copying) -> None:
        if self.done():
            return
        if self._ending:
            waits = copy.ending or copy.num_unexplained
        else:
            waits = not copy.course.over if self._began else copy.opening
        if waits:
            return
        self._awaited_copies.discard(copy)
        if self._awaited_copies:
            return
        if self._ending:
            self._conclude()
        elif self._began or any(each.refusals for each in self._copies):
            self._stop_all()
        else:
            self._began = True
            self._awaited_copies = set(self._copies)
            for each in self._copies:
                each.begin()
            for each in self._copies:
                self._changed(each)

    def _stop_all(self) -> None:
        """Let all receivers stop."""
        self._ending = True
        self._awaited_copies = set(self._copies)
        for copy in self._copies:
            copy.end()
        self._engine.call_later(_GRACE_S, self._wait_no_longer)
        for copy in self._copies:
            self._changed(copy)

    def _wait_no_longer(self) -> None:
        """End without the answers that are missing; but for a limit or a cancellation, with the causes of deaths."""
        for copy in self._copies:
            copy.ending.clear()
        if self._late or self._unwanted:
            self._conclude()
        else:
            for copy in self._copies:
                self._changed(copy)

    def _conclude(self) -> None:
        if self.done():
            return
        for copy in self._copies:
            copy.close()
        if self._timeout_s is not None:
            self._runtime.deadlines.remove(self._timeout_s, self)
        refusals = [error for copy in self._copies for error in copy.refusals.values()]
        errors = {index: error for copy in self._copies for index, error in copy.errors(self._timeout_s).items()}
        if refusals:
            self.set_exception(refusals[0])
        elif self._unwanted and not self._late and errors:
            super().cancel()
        elif errors:
            late = all(isinstance(error, TimeoutError) for error in errors.values())
            self.set_exception((CopyTimeout if late else CopyFailed)(self._what, errors))
        else:
            self.set_result(None)

    def expire(self) -> None:
        """Handle the timeout; on the driver."""
        self._late = True
        if not self._ending:
            self._stop_all()

    def cancel(self) -> bool:
        """Stop it; return whether it has been cancelled already. If not, it ends as soon as it can be stopped."""
        if not self.done():
            self._unwanted = True
            self._engine.call_soon(self._give_up)
        return self.cancelled()

    def _give_up(self) -> None:
        if not self._ending and not self.done():
            self._stop_all()
