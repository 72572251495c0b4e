"""Calls the `__supervise__` hook of one actor with the failures of what it has spawned, one after the other."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_hpc.actor.cell.coroutines import Coroutines
from monarch_hpc.actor.cell.endpoint_table import EndpointTable
from monarch_hpc.actor.context import set_context
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.core.text.description import summary_of

if TYPE_CHECKING:
    from monarch_hpc.actor.execution.event_loop import Running

__all__ = ["Supervision"]


class Supervision:
    """The failures that one actor has to handle.

    The hook of a class of coroutines runs on its loop, beside endpoints that wait; so does any hook that is a
    coroutine. Other hooks run between messages.

    Args:
        fail: ends the actor, with a cause and an exception.
        again: called when a hook has ended and there may be another failure.

    Attributes:
        running: the hook that runs as a coroutine now, if any.
        refuses: whether failures do not matter any more: the actor has been asked to stop.
    """

    __slots__ = ("_again", "_entries", "_fail", "_failures", "refuses", "running")

    def __init__(
        self, entries: EndpointTable, fail: Callable[[str, BaseException], None], again: Callable[[], None]
    ) -> None:
        self.running: Running | None = None
        self.refuses = False
        self._entries = entries
        self._fail = fail
        self._again = again
        self._failures: deque[tuple[MeshFailure, bool]] = deque()

    def add(self, failure: MeshFailure, *, reported: bool) -> None:
        """Queue a failure; from any thread."""
        if not self.refuses:
            self._failures.append((failure, reported))

    @property
    def due(self) -> bool:
        """Whether there is a failure to handle now."""
        return bool(self._failures) and self.running is None

    def handle(self, coroutines: Coroutines, *, on_loop: bool) -> None:
        """Handle the next failure.

        Args:
            coroutines: runs the hook if it is a coroutine.
            on_loop: whether functions run on the loop too.
        """
        failure, reported = self._failures.popleft()
        if self.refuses:
            return
        hook = getattr(self._entries.target, "__supervise__", None)
        if hook is None:
            self._judge(failure, handled=reported)
        elif on_loop or inspect.iscoroutinefunction(hook):
            self.running = coroutines.begin(self._perform(hook, failure), self._done)
        else:
            self._enter()
            try:
                handled = bool(hook(failure))
            except BaseException as error:  # noqa: BLE001 user code; reported to the next owner
                self._fail_for(failure, error)
            else:
                self._judge(failure, handled=handled)

    async def _perform(self, hook: Callable[[MeshFailure], Any], failure: MeshFailure) -> None:
        self._enter()
        try:
            handled = hook(failure)
            handled = bool(await handled if inspect.isawaitable(handled) else handled)
        except BaseException as error:  # noqa: BLE001 user code; reported to the next owner
            self._fail_for(failure, error)
        else:
            self._judge(failure, handled=handled)

    def _done(self, _running: Running) -> None:
        self.running = None
        self._again()

    def _enter(self) -> None:
        assert self._entries.base_context is not None
        set_context(self._entries.base_context)

    def _judge(self, failure: MeshFailure, *, handled: bool) -> None:
        if not handled:
            self._fail(f"it did not handle the failure: {failure}", RuntimeError(failure.report()))

    def _fail_for(self, failure: MeshFailure, error: BaseException) -> None:
        self._fail(f"its __supervise__ raised {summary_of(error)}, when called with the failure: {failure}", error)
