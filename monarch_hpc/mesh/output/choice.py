"""Log settings of meshes, and the requests that have the agents apply them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.config.schema import LogsConfig
from monarch_hpc.core.arguments import check_flag, check_number, check_seconds
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, TransportError
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.output import FlushLogs, LogsSet, SetLogs

__all__ = ["LogChoice", "LogRequests", "both", "check_choice", "parse_level"]


@dataclass(frozen=True, slots=True)
class LogChoice:
    """Settings for the output of a mesh; None stands for the value in the configuration.

    Attributes:
        mesh: number of the mesh.
        ranks: ranks of the procs to which *stream_to_client* applies; empty for all. The other settings always apply to
            the whole mesh.
        stream_to_client: whether the program shows the output.
        window_s: seconds within which equal lines are folded; 0 folds nothing.
        to_logging: whether log records go to the program's `logging` instead of being printed.
    """

    mesh: int
    ranks: tuple[int, ...]
    stream_to_client: bool | None = None
    window_s: float | None = None
    to_logging: bool | None = None


def check_choice(
    stream_to_client: bool | None, window_s: float | None, to_logging: bool | None
) -> tuple[bool | None, float | None, bool | None]:
    """Return the arguments of `ProcMesh.logging_option`, checked; raises `TypeError` and `ValueError`."""
    if stream_to_client is not None:
        check_flag("stream_to_client", stream_to_client)
    if to_logging is not None:
        check_flag("to_logging", to_logging)
    if window_s is not None:
        window_s = check_seconds("aggregate_window_sec", window_s, zero=True)
    return stream_to_client, window_s, to_logging


class LogRequests:
    """Sends log settings to the agents, and requests to flush, and awaits their confirmations.

    Args:
        send: sends a message to the head.
    """

    def __init__(
        self,
        run: str,
        config: LogsConfig,
        engine: Engine,
        printer: Printer,
        send: Callable[[SetLogs | FlushLogs], None],
    ) -> None:
        self.config = config
        self._run = run
        self._engine = engine
        self._printer = printer
        self._send = send
        self._num_requests = 0
        self._waiting: dict[int, tuple[int, set[int], Future[None]]] = {}

    def choose(self, choice: LogChoice, hosts: Collection[int]) -> Future[None]:
        """Apply *choice*; the future is done when all *hosts* have applied it.

        Args:
            choice: the settings.
            hosts: ranks of the hosts of the procs.
        """
        mesh = choice.mesh
        config = self.config
        window_s = config.fold_s if choice.window_s is None else choice.window_s
        to_logging = config.to_logging if choice.to_logging is None else choice.to_logging
        stream = config.stream_to_client if choice.stream_to_client is None else choice.stream_to_client
        future = self._ask(
            mesh, hosts, lambda left, number: SetLogs(self._run, mesh, left, list(choice.ranks), stream, number)
        )

        def done(_future: Future[None]) -> None:
            # The agents have sent all earlier lines by then: those are shown with the earlier settings.
            self._printer.choose(mesh, window_s, to_logging=to_logging)

        future.add_done_callback(done)
        return future

    def flush(self, mesh: int, hosts: Collection[int]) -> Future[None]:
        """Have the agents send what the procs of *mesh* have written; done when the printer has it from all *hosts*."""
        return self._ask(mesh, hosts, lambda left, number: FlushLogs(self._run, mesh, left, number))

    def _ask(
        self, mesh: int, hosts: Collection[int], make: Callable[[list[int], int], SetLogs | FlushLogs]
    ) -> Future[None]:
        """Send the message that *make* returns for hosts and number of the request; done when they have answered."""
        future: Future[None] = Future(self._engine, lambda: "the agents that send the output of procs")
        left = set(hosts)

        def ask() -> None:
            self._num_requests += 1
            self._waiting[self._num_requests] = mesh, left, future
            try:
                self._send(make(sorted(left), self._num_requests))
            except TransportError as error:
                self.fail(error)
            self._settle()

        self._engine.call_soon(ask)
        return future

    def on_set(self, answer: LogsSet) -> None:
        """Handle the confirmation of a host."""
        request = self._waiting.get(answer.number)
        if request is not None:
            request[1].discard(answer.host)
        self._settle()

    def on_refused(self, number: int, problem: str) -> None:
        """Fail a request that the head or a host has refused."""
        request = self._waiting.pop(number, None)
        if request is not None:
            request[2].set_exception(AllocationError("output", problem))

    def forget(self, host: int, mesh: int | None = None) -> None:
        """Stop waiting for *host*, which has no procs left: none of *mesh*, or none at all for None."""
        for number, left, _ in self._waiting.values():
            if mesh is None or mesh == number:
                left.discard(host)
        self._settle()

    def fail(self, error: TransportError) -> None:
        """Fail all requests: the allocation is gone."""
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            future.set_exception(error)

    def _settle(self) -> None:
        for number, (_, left, future) in list(self._waiting.items()):
            if not left:
                del self._waiting[number]
                future.set_result(None)


def parse_level(level: int | str) -> int:
    """Return a level of `logging`, given as its number or name.

    Raises:
        TypeError: *level* is neither a number nor a name.
        ValueError: there is no level of that name.
    """
    names = logging.getLevelNamesMapping()
    if isinstance(level, str):
        if level.upper() not in names:
            raise ValueError(f"level {level!r} is not known to logging: choose one of {', '.join(names)}, or a number")
        return names[level.upper()]
    return check_number("level", level)


class _Chosen(Future[None]):
    """A future that has the methods of a coroutine, too, because programs for Monarch pass it to `asyncio.run`."""

    _steps: Generator[object, None, None] | None = None

    def send(self, value: None, /) -> object:
        """Go on waiting; see `collections.abc.Coroutine`."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *raised: Any) -> object:
        """Raise an exception in the wait; see `collections.abc.Coroutine`."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*raised)

    def close(self) -> None:
        """Stop waiting; see `collections.abc.Coroutine`."""
        if self._steps is not None:
            self._steps.close()


def both(chosen: Future[None], levels: Future[Any]) -> Future[None]:
    """Return a future that is done when both futures are, and fails if either fails; `asyncio.run` takes it, too."""
    future: Future[None] = _Chosen(chosen._engine, lambda: "the agents and procs that apply the log settings")
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
