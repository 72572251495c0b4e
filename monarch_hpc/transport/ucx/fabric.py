"""UCX in this process: started for the first peer that it can reach, polled by the engine.

Starting takes some milliseconds, or half a second where the wheel that bundles CUDA is loaded; so a separate thread
does it, and channels continue over their sockets meanwhile.
"""

from __future__ import annotations

import os
import time
import weakref
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from monarch_hpc.config.schema import FabricConfig, UcxConfig
from monarch_hpc.config.tls import leave_out_rdma, opens
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.cuda import has_gpu_direct
from monarch_hpc.core.machine.place import read_place
from monarch_hpc.core.process.fork import hold_forks
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.text.units import format_size
from monarch_hpc.transport.api import Capabilities, LaneListener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.ucx.front import place
from monarch_hpc.transport.ucx.hole_probe import STUCK, Probe
from monarch_hpc.transport.ucx.lane import UcxLane
from monarch_hpc.transport.ucx.library import load_library
from monarch_hpc.transport.ucx.machine import Machine, read_machine
from monarch_hpc.transport.ucx.registrations import Registrations
from monarch_hpc.transport.ucx.settings import choose_transports, named_library, ucx_variables

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx

__all__ = ["UcxFabric"]

_log = Logger(__name__)

_starting = allocate_lock()
"""Serializes starts, which change the environment of the whole process."""

_AGAIN_S = 0.1
"""Time between attempts to tell the outcome of a start, where there is no memory for that."""

Started = Callable[[str], None]
"""Called on the driver with the reason why UCX is not available; empty if it is."""


class UcxFabric:
    """UCX for all channels of a process; see `transport.api.Fabric`.

    Args:
        login: this process is not on a host of the allocation, and gets no RDMA.
        interfaces: names of the interfaces to listen on, for UCX over tcp.
        segments: folder for shared memory; empty leaves the choice to UCX.
        max_frame_bytes: limit of all channels.
        closed: called when UCX has stopped, and needs *segments* no more.

    Raises:
        ConfigError: the configured transports include tcp on a network that is not trusted.
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
        closed: Callable[[], object] = lambda: None,
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
        self._folder = segments
        self._rdma_fault = ""
        self._worker: _ucx.Worker | None = None
        self._registrations: Registrations | None = None
        self._waiting: list[Started] | None = None  # None before the start
        self._problem = ""
        self._lanes: weakref.WeakSet[UcxLane] = weakref.WeakSet()
        self._thread: Thread | None = None
        self._closed = False
        self._on_closed = closed
        self._shared_memory = True
        self._probe = Probe(engine, self._shared_lanes, self._drop_shared_memory)

    @property
    def capabilities(self) -> Capabilities:
        """The facts that a peer needs to choose a fabric; does not start UCX."""
        return Capabilities(
            place=read_place() if self._shared_memory and opens(self._tls, "posix") else "",
            rdma=self._rdma,
            tcp=opens(self._tls, "tcp"),
            problem=self._problem,
            rdma_fault=self._rdma_fault,
        )

    @property
    def _rdma(self) -> bool:
        """Whether this process may use RDMA, as far as it is known before the start."""
        return bool(self._machine.rdma) and opens(self._tls, "rc_verbs")

    @property
    def address(self) -> bytes:
        """The address of the worker; only once UCX has started."""
        assert self._worker is not None, "the fabric has started"
        return self._worker.address

    def open_lane(self, listener: LaneListener, peer: str, send_queue_bytes: int) -> UcxLane:
        """Open a lane; only once UCX has started."""
        assert self._worker is not None, "the fabric has started"
        lane = UcxLane(self._engine, self._worker, self._max_frame_bytes, self._probe, listener, peer, send_queue_bytes)
        self._lanes.add(lane)  # to be probed, and to be notified when UCX is closed
        return lane

    def _shared_lanes(self) -> list[UcxLane]:
        return [lane for lane in list(self._lanes) if lane.usable and lane.shared]

    def _drop_shared_memory(self) -> None:
        self._shared_memory = False
        for lane in self._shared_lanes():
            lane.fail(PeerLost(lane.peer, STUCK))

    def start(self, started: Started) -> None:
        """Start UCX unless it has started; *started* is called with the outcome."""
        if self._worker is not None or self._problem or self._closed:
            started(self._problem or ("" if not self._closed else "this process is closing"))
            return
        if self._waiting is not None:
            self._waiting.append(started)
            return
        self._waiting = [started]
        try:
            self._thread = Thread(self._start)
        except RuntimeError as error:
            self._started(None, f"UCX does not start: {error}")

    def _start(self) -> None:
        worker: _ucx.Worker | None = None
        problem = ""
        try:
            if self._rdma:
                self._try_rdma()
            with hold_forks(), _starting, _environment(self._variables):
                library = load_library(self._library)
                if library.reason:
                    problem = library.reason
                else:
                    from monarch_hpc.transport.ucx import _ucx

                    worker = _ucx.Worker(self._max_frame_bytes, place)
        except Exception as error:  # noqa: BLE001 a thread's edge: without UCX there is tcp
            problem = f"UCX does not start: {error}"
        while True:
            try:
                self._engine.call_soon(partial(self._started, worker, problem))
                return
            except MemoryError:
                time.sleep(_AGAIN_S)  # nobody else can tell those that wait

    def _try_rdma(self) -> None:
        # Late: it brings `subprocess`, which a proc on a host without RDMA need not load.
        from monarch_hpc.transport.ucx.rdma_trial import find_rdma_fault

        self._rdma_fault = find_rdma_fault(self._library, self._variables, os.environ, self._folder)
        if self._rdma_fault:
            self._tls = leave_out_rdma(self._tls)
            self._variables = {**self._variables, "UCX_TLS": self._tls}

    def _started(self, worker: _ucx.Worker | None, problem: str) -> None:
        waiting, self._waiting = self._waiting or [], None
        if self._closed:
            if worker is not None:
                worker.close()  # it has no peers yet
            problem = "this process is closing"
        elif worker is not None:
            self._worker = worker
            self._registrations = Registrations(worker)
            self._engine.attach(self)
        self._problem = problem
        if problem:
            _log.info("no UCX: %s", problem)
        for started in waiting:
            started(problem)
        self._engine.wake_waiters()

    def register(self, memory: Memory) -> None:
        """Let UCX serve *memory* too, if UCX is or can be started; engine callbacks do not start it."""
        if self._worker is None:
            if self._engine.driving:
                return
            outcome: list[str] = []
            self._engine.call_soon(lambda: self.start(outcome.append))
            self._engine.wait(lambda: bool(outcome), None)
        registrations = self._registrations
        if registrations is None or not memory.nbytes or (memory.parts.on_device and not has_gpu_direct()):
            return
        from monarch_hpc.transport.ucx import _ucx

        try:
            registrations.serve(memory)
        except _ucx.UcxError as error:
            # Such as at the limit of locked memory. Frames lock no more than their window.
            memory.refuse()
            _log.warning(
                "UCX cannot register %s, which others read by frames, more slowly: %s; see 'monarch-hpc doctor' for "
                "the limit of locked memory",
                format_size(memory.lent_bytes),
                error,
            )

    def close(self) -> None:
        """Stop UCX; lanes can no longer be used. From any thread, once."""
        if not self._engine.driving:
            self._engine.call_soon(self.close)
            # A start in flight must end first; it then finds the fabric closed.
            self._engine.wait(lambda: self._closed and self._worker is None and self._waiting is None, None)
            if self._thread is not None:
                self._thread.join()
            self._on_closed()
            return
        self._closed = True
        if self._worker is not None:
            self._engine.detach()
            if not self._worker.close():
                _log.info("UCX is left running, since a peer that it was connecting to does not answer")
            self._worker = self._registrations = None
            for lane in list(self._lanes):
                lane.abandon()
        self._engine.wake_waiters()

    # ---- sources.Poller ----

    @property
    def fd(self) -> int:
        """UCX's event descriptor."""
        assert self._worker is not None
        return self._worker.fd

    def poll(self, epoll_fd: int, spin_s: float, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Wait for UCX or sockets; see `transport.engine.sources.Poller`."""
        assert self._worker is not None
        return self._worker.poll(epoll_fd, spin_s, timeout_s)

    def wait_away(self) -> None:
        """Return when no thread has polled for some milliseconds; see `transport.engine.sources.Poller`."""
        worker = self._worker
        if worker is not None:
            worker.wait_away()

    def dispatch(self) -> None:
        """Deliver UCX's events to the lanes."""
        if self._worker is None:
            return
        taken = self._worker.take()
        for event in taken:
            try:
                # Literal numbers of `_ucx`, since the extension is not built everywhere and cannot be imported here.
                if event[0] == 1:  # SMALL
                    event[1].on_records(event[2], event[3])
                elif event[0] == 2:  # BULK
                    event[1].on_bulk(event[2], event[3], event[4])
                elif event[0] == 3:  # DONE
                    if event[1].on_done is not None:
                        event[1].on_done()
                elif event[0] == 4:  # ERROR
                    event[1].on_error(event[2])
                elif event[0] == 6:  # WIRED
                    event[1].on_wired()
            except Exception as error:  # noqa: BLE001 one broken callback must not stop the others' I/O
                self._engine.on_fault("a callback of a UCX lane failed", error)
        if taken:
            self._engine.wake_waiters()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set *variables* in the environment: the only way to configure libucp, but not for the user's child processes."""
    try:
        from monarch_hpc.transport.ucx import _ucx
    except ImportError:  # not built, as `load_library` will say
        yield
        return
    with _ucx.Environment(variables):
        yield
