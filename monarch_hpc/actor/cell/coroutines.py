"""The coroutines of one actor: its event loop, from the first one on, and which of them run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from monarch_hpc.actor.cell.invocation import Invocation
from monarch_hpc.actor.fault import print_error
from monarch_hpc.core.errors import ActorDied
from monarch_hpc.core.text.description import summary_of, trace_of
from monarch_hpc.transport.engine.engine import Engine

if TYPE_CHECKING:
    from monarch_hpc.actor.execution.event_loop import ActorLoop, Running, Wait

__all__ = ["Coroutines"]


class Coroutines:
    """Starts, cancels and counts the coroutines of one actor; used on the actor's thread.

    Args:
        wait: how that thread waits in the middle of its work.
        wake: makes that thread run the loop; called from any thread.

    Attributes:
        loop: the loop; None before it is needed.
        running: the coroutines that run, each with its call if it serves one.
    """

    __slots__ = ("_engine", "_wait", "_wake", "loop", "running")

    def __init__(self, engine: Engine, wait: Wait, wake: Callable[[], None]) -> None:
        self.loop: ActorLoop | None = None
        self.running: dict[Running, Invocation | None] = {}
        self._engine = engine
        self._wait = wait
        self._wake = wake

    def begin(
        self,
        coroutine: Coroutine[object, object, None],
        done: Callable[[Running], None],
        invocation: Invocation | None = None,
    ) -> Running:
        """Start *coroutine*, which must not raise, in a copy of the current context variables.

        Args:
            done: called on the loop when it has ended.
            invocation: the call that it serves.
        """

        def over(running: Running) -> None:
            self.running.pop(running, None)
            done(running)

        running = self._open().begin(coroutine, over)
        self.running[running] = invocation
        return running

    def step(self, loop: ActorLoop, fail: Callable[[str, BaseException], None]) -> None:
        """Run one round of *loop*; *fail* is called with what ends the actor, in words and as an exception."""
        try:
            loop.step()
        except (SystemExit, KeyboardInterrupt) as error:  # of a task: asyncio passes these on, and no others
            fail(f"a task raised {summary_of(error)}", error)
        if loop.broken is not None:
            fail(f"its event loop failed: {summary_of(loop.broken)}", loop.broken)

    def call(self, function: Callable[[], object]) -> object:
        """Call *function* on the loop; return its result, awaited if it is awaitable. Raises what it raises."""
        return self._open().complete(function, self._wait)

    def cancel_all(self, timeout_s: float) -> None:
        """Cancel everything that runs, and wait for its end, *timeout_s* seconds at most."""
        loop = self.loop
        if loop is not None and self.running and not _is_broken_off(loop):
            for running in list(self.running):
                running.cancel()
            loop.run_until(lambda: not self.running, self._wait, timeout_s)

    def refuse(self, died: ActorDied) -> None:
        """Answer all calls that coroutines serve with *died*."""
        for invocation in list(self.running.values()):
            if invocation is not None:
                invocation.refuse(died, raised=False)

    def close(self, where: str) -> None:
        """End the loop, of the actor *where*."""
        loop = self.loop
        if loop is not None and not loop.is_closed() and not _is_broken_off(loop):
            try:
                loop.end(self._wait)
            except BaseException as error:  # noqa: BLE001 user code; the actor ends all the same
                print_error(f"{where}: a task could not be ended:\n{trace_of(error)}")

    def _open(self) -> ActorLoop:
        if self.loop is None:
            from monarch_hpc.actor.execution.event_loop import ActorLoop  # with asyncio, which others never need

            self.loop = ActorLoop(self._engine, self._wake)
        return self.loop


def _is_broken_off(loop: ActorLoop) -> bool:
    """Whether the loop is in a round for ever: it was asked between rounds, and its thread was ended in C."""
    return loop.is_running()
