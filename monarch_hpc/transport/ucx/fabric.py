"""UCX in this process: started for the first peer that it can reach, polled by the engine.

Starting takes some milliseconds, half a second where the wheel with CUDA inside is loaded; so a thread of its own
does it, and channels go on over their sockets meanwhile.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monarch_hpc.config.schema import FabricConfig, UcxConfig
from monarch_hpc.config.tls import opens
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.place import read_place
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.registry import Memory
from monarch_hpc.transport.ucx.hole_probe import STUCK, Probe
from monarch_hpc.transport.ucx.library import load_library
from monarch_hpc.transport.ucx.machine import Machine, read_machine
from monarch_hpc.transport.ucx.negotiation import Ask
from monarch_hpc.transport.ucx.settings import choose_transports, named_library, ucx_variables

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx
    from monarch_hpc.transport.ucx.lane import UcxLane

__all__ = ["UcxFabric"]

_log = Logger(__name__)

_starting = threading.Lock()
"""The environment is one for all."""

Started = Callable[[str], None]
"""Called on the driver with why UCX is not there; empty when it is."""


class UcxFabric:
    """UCX for all channels of a process; its methods are for the driver, but for `close`.

    Args:
        login: this process is not on a host of the allocation, and gets no RDMA.
        interfaces: names of those chosen to listen on, for UCX over tcp.
        segments: folder in which to make shared memory; empty leaves the choice to UCX.
        max_frame_bytes: of all channels.

    Raises:
        ConfigError: transports were asked for that open tcp on a network that is not trusted.
    """

    def __init__(
        self,
        engine: Engine,
        fabric: FabricConfig,
        ucx: UcxConfig,
        *,
        login: bool,
        interfaces: Sequence[str],
        max_frame_bytes: int,
        segments: str = "",
    ) -> None:
        self._engine = engine
        self._max_frame_bytes = max_frame_bytes
        machine = read_machine()
        self._library = named_library(ucx, os.environ)
        self._variables = ucx_variables(
            fabric, ucx, os.environ, machine, login=login, interfaces=interfaces, segments=segments
        )
        self._tls = choose_transports(fabric, ucx, os.environ, machine, login=login)
        self._machine: Machine = machine
        self._worker: _ucx.Worker | None = None
        self._waiting: list[Started] | None = None  # None before the start
        self._problem = ""
        self._lanes: weakref.WeakSet[UcxLane] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._shared_memory = True
        self.probe = Probe(engine, self._shared_lanes, self._drop_shared_memory)
        """Whether shared memory still carries something."""

    @property
    def ask(self) -> Ask:
        """What a peer must know to choose; costs no start."""
        return Ask(
            place=read_place() if self._shared_memory and opens(self._tls, "posix") else "",
            rdma=bool(self._machine.rdma) and opens(self._tls, "rc_verbs"),
            tcp=opens(self._tls, "tcp"),
            problem=self._problem,
        )

    @property
    def worker(self) -> _ucx.Worker | None:
        """The binding's worker, once UCX has started."""
        return self._worker

    @property
    def engine(self) -> Engine:
        """What drives it."""
        return self._engine

    @property
    def max_frame_bytes(self) -> int:
        """Config key `transport.max_frame_bytes`."""
        return self._max_frame_bytes

    def add(self, lane: UcxLane) -> None:
        """Tell *lane* when UCX goes."""
        self._lanes.add(lane)

    def _shared_lanes(self) -> list[UcxLane]:
        return [lane for lane in list(self._lanes) if lane.usable and lane.shared]

    def _drop_shared_memory(self) -> None:
        self._shared_memory = False
        for lane in self._shared_lanes():
            lane.fail(PeerLost(lane.peer, STUCK))

    def start(self, started: Started) -> None:
        """Start UCX unless it has; *started* is told."""
        if self._worker is not None or self._problem or self._closed:
            started(self._problem or ("" if not self._closed else "this process is closing"))
            return
        if self._waiting is not None:
            self._waiting.append(started)
            return
        self._waiting = [started]
        self._thread = threading.Thread(target=self._start, name="monarch-ucx-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        worker: _ucx.Worker | None = None
        problem = ""
        try:
            with _starting, _environment(self._variables):
                library = load_library(self._library)
                if library.reason:
                    problem = library.reason
                else:
                    from monarch_hpc.transport.ucx import _ucx

                    worker = _ucx.Worker(self._max_frame_bytes)
        except Exception as error:  # noqa: BLE001 a thread's edge: without UCX there is tcp
            problem = f"UCX does not start: {error}"
        self._engine.call_soon(lambda: self._started(worker, problem))

    def _started(self, worker: _ucx.Worker | None, problem: str) -> None:
        waiting, self._waiting = self._waiting or [], None
        if self._closed:
            if worker is not None:
                worker.close()  # it has no peers yet
            problem = "this process is closing"
        elif worker is not None:
            self._worker = worker
            self._engine.attach(self)
        self._problem = problem
        if problem:
            _log.info("no UCX: %s", problem)
        for started in waiting:
            started(problem)
        self._engine.wake_waiters()

    def register(self, memory: Memory) -> None:
        """Let UCX serve *memory* too, if UCX is there or can be; not from callbacks of the engine."""
        if self._worker is None:
            if self._engine.driving:
                return
            outcome: list[str] = []
            self._engine.call_soon(lambda: self.start(outcome.append))
            self._engine.wait(lambda: bool(outcome), None)
        worker = self._worker
        if worker is None or not memory.nbytes:
            return
        from monarch_hpc.transport.ucx import _ucx

        span = _ucx.Span(memory.buffer, memory.parts.writable)
        try:
            registered = worker.register(span, memory.parts.writable)
        except _ucx.UcxError as error:
            _log.info("UCX does not take a memory of %d bytes: %s", memory.nbytes, error)
            return
        memory.attach(span.address, registered.key, registered.close)

    def close(self) -> None:
        """End UCX; lanes are of no more use. From any thread, once."""
        if not self._engine.driving:
            self._engine.call_soon(self.close)
            # A start that is under way has to end first, and then finds that it is no longer wanted.
            self._engine.wait(lambda: self._closed and self._worker is None and self._waiting is None, None)
            if self._thread is not None:
                self._thread.join()
            return
        self._closed = True
        if self._worker is not None:
            self._engine.detach()
            if not self._worker.close():
                _log.info("UCX stays as it is, since a peer that it was connecting to does not answer")
            self._worker = None
            for lane in list(self._lanes):
                lane.abandon()
        self._engine.wake_waiters()

    # ---- poller.Poller ----

    @property
    def fd(self) -> int:
        """UCX's event descriptor."""
        assert self._worker is not None
        return self._worker.fd

    def poll(self, epoll_fd: int, spin_s: float, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Wait for UCX or sockets; see `transport.engine.poller.Poller`."""
        assert self._worker is not None
        return self._worker.poll(epoll_fd, spin_s, timeout_s)

    def wait_away(self) -> None:
        """Return when nobody has polled for some milliseconds; see `transport.engine.poller.Poller`."""
        worker = self._worker
        if worker is not None:
            worker.wait_away()

    def dispatch(self) -> None:
        """Hand what came to the lanes."""
        if self._worker is None:
            return
        taken = self._worker.take()
        for event in taken:
            try:
                # The numbers are those of `_ucx`, which is not there to be imported everywhere.
                if event[0] == 1:  # SMALL
                    event[1].on_records(event[2], event[3])
                elif event[0] == 2:  # BULK
                    event[1].on_bulk(event[2], event[3], event[4])
                elif event[0] == 3:  # DONE
                    if event[1].on_done is not None:
                        event[1].on_done()
                elif event[0] == 4:  # ERROR
                    event[1].on_error(event[2])
            except Exception:  # noqa: BLE001 one broken callback must not stop the others' I/O
                _log.exception("a callback of a UCX lane failed")
        if taken:
            self._engine.wake_waiters()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """The environment with *variables*: the only way to tell libucp, and not meant for the user's children."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
