"""The agent's pool of zygotes: started on demand, kept warm, and replaced when they die."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.procs.zygote_launch import StartingZygote, ZygoteSettings, launch_zygote
from monarch_hpc.agent.procs.zygote_order import FDS_PER_PROC, MAX_FDS, render, split, versions
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.version import __version__
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.start import ProcOrder, render_order

__all__ = ["MAX_PROCS_PER_ORDER", "ForkProblem", "Spawned", "ZygotePool"]

MAX_PROCS_PER_ORDER = MAX_FDS // FDS_PER_PROC
"""Limited by the descriptors in one message."""

_log = Logger(__name__)

_MAX_ZYGOTES = 4
_MAX_STDERR_BYTES = 64 << 10
_NUM_LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class ForkProblem:
    """Why procs could not be forked."""

    cause: str
    last_lines: list[str]


Spawned = list[int] | ForkProblem
"""Pids in the order of the requested procs, or the reason why there are none."""

_Done = Callable[[Spawned], None]

_MAX_IN_FLIGHT = 2
"""Requests in flight to a zygote, so that it is never idle; all others are queued, so that runs can take turns."""


@dataclass(slots=True)
class _Request:
    """One request to a zygote.

    Attributes:
        fds: duplicated descriptors, closed once the request has been sent.
        is_wanted: whether any of its procs is still wanted.
    """

    data: bytes
    fds: list[int]
    done: _Done
    is_wanted: Callable[[], bool]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


_Kind = tuple[str, tuple[str, ...]]
"""An interpreter, empty for the agent's own, and the modules preloaded in it."""


class ZygotePool:
    """The agent's zygotes, one for each interpreter and list of preloaded modules, kept for later orders."""

    def __init__(self, engine: Engine, reaper: Reaper, settings: ZygoteSettings) -> None:
        self._engine = engine
        self._reaper = reaper
        self._settings = settings
        self._zygotes: dict[_Kind, _Zygote] = {}  # least recently used first

    def warm(self, starting: StartingZygote, preload: Sequence[str]) -> None:
        """Adopt *starting*, which runs the agent's own interpreter, as the zygote for *preload*."""
        kind = "", tuple(preload)
        self._zygotes[kind] = _Zygote(self._engine, self._reaper, self._settings, starting, *kind)

    def spawn(
        self,
        python: str,
        preload: Sequence[str],
        order: ProcOrder,
        fds: Sequence[int],
        done: _Done,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Fork the procs of *order* from a zygote that has imported *preload*; call *done* with the outcome.

        The orders of a run are carried out in order, and runs take turns: one that spawns thousands delays no other.

        Args:
            python: the interpreter; empty for the agent's own.
            fds: `FDS_PER_PROC` descriptors for each proc; the caller may close them on return.
            is_wanted: called when it is the order's turn; an order that is not wanted any more is dropped.

        Raises:
            OSError: the zygote cannot be started.
        """
        assert len(order.starts) <= MAX_PROCS_PER_ORDER
        assert len(fds) == len(order.starts) * FDS_PER_PROC
        request = _Request(render(render_order(order)), [os.dup(fd) for fd in fds], done, is_wanted)
        self._get((python, tuple(preload))).send(order.starts[0].run, request)

    def close(self) -> None:
        """Kill all zygotes; procs forked from them live on."""
        for zygote in self._zygotes.values():
            zygote.kill()
        self._zygotes.clear()

    def _get(self, kind: _Kind) -> _Zygote:
        zygote = self._zygotes.pop(kind, None)
        if zygote is None or zygote.gone:
            starting = launch_zygote(self._settings, python=kind[0])
            zygote = _Zygote(self._engine, self._reaper, self._settings, starting, *kind)
        self._zygotes[kind] = zygote
        if len(self._zygotes) > _MAX_ZYGOTES:
            idle = next((key for key, one in self._zygotes.items() if not one.busy and one is not zygote), None)
            if idle is not None:
                self._zygotes.pop(idle).kill()
        return zygote


class _Zygote:
    """The connection to one zygote process; answers arrive in the order of the requests.

    Few requests are in flight at a time; the others wait in one queue for each run, and the runs take turns.
    """

    def __init__(
        self,
        engine: Engine,
        reaper: Reaper,
        settings: ZygoteSettings,
        starting: StartingZygote,
        python: str,
        preload: tuple[str, ...],
    ) -> None:
        self._engine = engine
        self._python = python
        self._pid, self._sock, self._stderr_fd = starting.pid, starting.sock, starting.stderr_fd
        self._waiting: dict[str, deque[_Request]] = {}  # by run, the next one first
        self._in_flight: deque[_Done] = deque()
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._incoming = b""
        self._problem: ForkProblem | None = None
        self.gone = False
        engine.watch(self._sock.fileno(), self._on_ready)
        reaper.watch(self._pid, self._ended)
        hello = {
            "entry": settings.entry,
            "preload": list(preload),
            "agent_pid": os.getpid(),
            "allocation": settings.allocation,
            "host": settings.host_rank,
            "versions": versions(),
        }
        self._queue(render(hello), [])

    @property
    def busy(self) -> bool:
        """Whether requests are in flight or queued."""
        return bool(self._waiting or self._in_flight)

    def send(self, run: str, request: _Request) -> None:
        """Send a request of *run* when it is its turn."""
        self._waiting.setdefault(run, deque()).append(request)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and len(self._in_flight) < _MAX_IN_FLIGHT:
            run, queue = next(iter(self._waiting.items()))
            request = queue.popleft()
            del self._waiting[run]
            if queue:
                self._waiting[run] = queue  # behind the other runs
            if request.is_wanted():
                self._in_flight.append(request.done)
                self._queue(request.data, request.fds)
            else:
                request.close()

    def kill(self) -> None:
        """Kill the process; `_ended` then fails the requests in flight."""
        if not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _queue(self, data: bytes, fds: list[int]) -> None:
        self._outgoing.append((data, fds))
        if len(self._outgoing) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                data, fds = self._outgoing[0]
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                sent = self._sock.sendmsg([data], rights)
                for fd in fds:
                    os.close(fd)
                if sent < len(data):
                    self._outgoing[0] = (data[sent:], [])
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            pass
        except OSError:
            return  # the zygote has ended; the reaper reports it
        self._engine.watch(self._sock.fileno(), self._on_ready, write=bool(self._outgoing))

    def _on_ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush()
        if mask & ~select.EPOLLOUT:
            self._read()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nothing more for now, or a broken socket, whose end the reaper reports
            while data := self._sock.recv(1 << 16):
                self._incoming += data
            self._engine.unwatch(self._sock.fileno())
        answers, self._incoming = split(self._incoming)
        for answer in answers:
            self._handle(json.loads(answer))

    def _handle(self, answer: dict[str, object]) -> None:
        match answer:
            case {"failed": list(lines)}:
                self._problem = ForkProblem("a module to preload cannot be imported", [str(line) for line in lines])
            case {"mismatch": str(cause)}:
                self._problem = ForkProblem(f"{self._python or sys.executable} {cause}", [])
            case {"pids": list(pids)}:
                self._in_flight.popleft()(pids)
            case {"error": str(cause)}:
                self._in_flight.popleft()(ForkProblem(cause, []))
        self._send_waiting()

    def _ended(self, how: Exit) -> None:
        self._read()  # the last message may be the reason
        self.gone = True
        self._engine.unwatch(self._sock.fileno())
        self._sock.close()
        for _, fds in self._outgoing:
            for fd in fds:
                os.close(fd)
        self._outgoing.clear()
        problem = self._problem or self._exit_problem(how)
        self._close_stderr()
        requests = [request for queue in self._waiting.values() for request in queue]
        for request in requests:
            request.close()
        waiting = [*self._in_flight, *(request.done for request in requests)]
        self._in_flight.clear()
        self._waiting.clear()
        if self._problem is not None and not waiting:
            _log.warning("%s (config key 'procs.preload'):\n%s", problem.cause, "\n".join(problem.last_lines))
        for done in waiting:
            done(problem)

    def _close_stderr(self) -> None:
        if self._stderr_fd >= 0:
            os.close(self._stderr_fd)

    def _exit_problem(self, how: Exit) -> ForkProblem:
        """The problem of a zygote that ended without sending a reason."""
        if not self._python:
            return ForkProblem(f"the zygote, which procs are forked from, ended: {how}", [])
        lines = os.pread(self._stderr_fd, _MAX_STDERR_BYTES, 0).decode(errors="replace").splitlines()
        cause = f"{self._python} ended: {how}; it needs monarch-hpc {__version__} and the modules to preload"
        return ForkProblem(cause, lines[-_NUM_LAST_LINES:])
