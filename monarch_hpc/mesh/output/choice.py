"""What a program chooses about the output of its meshes, and how it hears that it was done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.config.schema import LogsConfig
from monarch_hpc.core.arguments import check_number
from monarch_hpc.core.errors import AllocationError, TransportError
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.logs import LogsSet, SetLogs

__all__ = ["LogChoice", "LogRequests", "both", "parse_level"]


@dataclass(frozen=True, slots=True)
class LogChoice:
    """How the output of a mesh is treated; None is as the configuration says.

    Attributes:
        ranks: of the procs whose output is meant; empty for all. Folding and logging are chosen for all in any case.
    """

    mesh: int
    ranks: tuple[int, ...]
    stream_to_client: bool | None = None
    window_s: float | None = None
    to_logging: bool | None = None


class LogRequests:
    """Asks the agents for what was chosen.

    Args:
        tell: sends a message to the head.
    """

    def __init__(
        self, run: str, config: LogsConfig, engine: Engine, printer: Printer, tell: Callable[[SetLogs], None]
    ) -> None:
        self.config = config
        self._run = run
        self._engine = engine
        self._printer = printer
        self._tell = tell
        self._num_requests = 0
        self._waiting: dict[int, tuple[int, set[int], Future[None]]] = {}

    def choose(self, choice: LogChoice, hosts: Collection[int]) -> Future[None]:
        """Treat output as chosen.

        Args:
            hosts: where the procs are; when all of them do so, the future is done.
        """
        mesh = choice.mesh
        config = self.config
        window_s = config.fold_s if choice.window_s is None else choice.window_s
        to_logging = config.to_logging if choice.to_logging is None else choice.to_logging
        stream = config.stream_to_client if choice.stream_to_client is None else choice.stream_to_client
        future: Future[None] = Future(self._engine, lambda: "the agents that choose what becomes of output")
        left = set(hosts)

        def ask() -> None:
            self._num_requests += 1
            self._waiting[self._num_requests] = mesh, left, future
            try:
                self._tell(SetLogs(self._run, mesh, sorted(left), list(choice.ranks), stream, self._num_requests))
            except TransportError as error:
                self.fail(error)
            self._settle()

        def done(_future: Future[None]) -> None:
            # The agents have sent what was printed before: it is shown as it was to be shown then.
            self._printer.choose(mesh, window_s, to_logging=to_logging)

        future.add_done_callback(done)
        self._engine.call_soon(ask)
        return future

    def on_set(self, answer: LogsSet) -> None:
        """A host has done it."""
        request = self._waiting.get(answer.number)
        if request is not None:
            request[1].discard(answer.host)
        self._settle()

    def on_refused(self, number: int, problem: str) -> None:
        """The head or a host cannot do it."""
        request = self._waiting.pop(number, None)
        if request is not None:
            request[2].set_exception(AllocationError("output", problem))

    def forget(self, host: int, mesh: int | None = None) -> None:
        """There are no procs on *host* any more, of *mesh* or at all."""
        for number, left, _ in self._waiting.values():
            if mesh is None or mesh == number:
                left.discard(host)
        self._settle()

    def fail(self, error: TransportError) -> None:
        """The allocation is gone."""
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            future.set_exception(error)

    def _settle(self) -> None:
        for number, (_, left, future) in list(self._waiting.items()):
            if not left:
                del self._waiting[number]
                future.set_result(None)


def parse_level(level: int | str) -> int:
    """Return a level of `logging` by its number or name.

    Raises:
        TypeError: neither a number nor a name.
        ValueError: there is no level of that name.
    """
    names = logging.getLevelNamesMapping()
    if isinstance(level, str):
        if level.upper() not in names:
            raise ValueError(f"level {level!r} is not known to logging: choose one of {', '.join(names)}, or a number")
        return names[level.upper()]
    return check_number("level", level)


def both(chosen: Future[None], levels: Future[Any]) -> Future[None]:
    """Return a future that is done when both are, and fails as either."""
    future: Future[None] = Future(chosen._engine, lambda: "whoever chooses what becomes of output")
    left = [chosen, levels]

    def read() -> None:
        chosen.result()
        levels.result()

    def one(done: Future[Any]) -> None:
        left.remove(done)
        if not left:
            future.set_resolver(read)

    chosen.add_done_callback(one)
    levels.add_done_callback(one)
    return future
