"""Gathers the answers to one call of an actor mesh until all have arrived, or the call has failed or timed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import ActorError, CallTimeout, MonarchError, SpawnError
from monarch_hpc.core.errors.joined import join_failures
from monarch_hpc.mesh.calls.answer import CallOptions, is_result, read_answer
from monarch_hpc.mesh.calls.callee import Answers, Callee
from monarch_hpc.wire.frames import Frame

__all__ = ["Gather"]

_SETTLE_S = 0.25
"""Wait for failures of other ranks after the first failure of a call.

Long enough to report a bug that strikes every rank as one `MeshError`; short, because ranks that wait for the failed
one never answer.
"""


class Gather(Answers):
    """All answers to one call; values are unpickled by the thread that reads them."""

    def __init__(self, runtime: Runtime, callee: Callee, method: str, options: CallOptions) -> None:
        super().__init__(runtime, callee, method, options)
        self.completed: Callable[[], None] = _nothing
        """Called once, on the driver, when the call has ended; must be set before the call is sent."""
        self._failing = False

    @property
    def fails(self) -> bool:
        """Whether `collect` will raise; valid once the call has ended."""
        return not self.options.collects and (self._failing or self._num_missing > 0)

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        first = not self._failing and not is_result(given)
        if first:
            self._failing = True
        if is_last:
            self._end()
        elif first and not self.options.collects:
            self.runtime.engine.call_later(_SETTLE_S, self._end)

    def _end(self) -> None:
        if not self._over:
            self.drop()
            self.completed()

    def expire(self) -> None:
        self._end()
        self.withdraw()

    def give_up(self) -> None:
        self.drop()
        self.withdraw()

    def collect(self) -> tuple[list[Any], dict[int, BaseException]]:
        """The results in the order of ranks, and the exceptions of failed ranks by place.

        With ``on_error="collect"``, the exceptions are among the results too.

        Raises:
            MeshError: endpoints raised, unless the call collects exceptions.
            MeshDied: ranks are gone; likewise.
            CallTimeout: not all ranks answered in time, and none failed; likewise.
        """
        values: list[object] = []
        failures: dict[int, BaseException] = {}
        missing: list[int] = []
        again = False
        for index, answer in enumerate(self._answers):
            value: object = None
            if answer is None:
                missing.append(index)
            else:
                value, failure = read_answer(answer, again=again)
                again = True
                if issubclass(type(failure), CallTimeout) and not issubclass(type(failure), ActorError):
                    missing.append(index)  # the callee has noticed the time limit first
                elif failure is not None:
                    value = failures[index] = failure
            values.append(value)
        if self.options.collects:
            for index in missing:
                values[index] = failures[index] = self._late(index)
            return values, failures
        if failures:
            first = next(iter(failures.values()))
            if isinstance(first, SpawnError) and all(failure is first for failure in failures.values()):
                raise first  # the procs did not start
            raise join_failures(f"{self._callee.name}.{self._method}", failures)
        if missing:
            raise self._late(*missing)
        return values, failures


def _nothing() -> None:
    """Default of `Gather.completed`."""
