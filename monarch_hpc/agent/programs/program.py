"""One program: its process, its input and output, the clients that read it, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.children.environment import without_step
from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.programs import launcher
from monarch_hpc.agent.programs.feed import Feed, resize
from monarch_hpc.agent.programs.pump import Pump
from monarch_hpc.allocation.output_log import ERR, OUT, OutputLog
from monarch_hpc.allocation.programs import ProgramExit, ProgramRecord, run_folder, write_exit, write_program
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.exit import TIMED_OUT, Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.control.programs import StartProgram
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE

__all__ = ["HostSettings", "Program", "settings_of"]

_INTERRUPT = b"\x03"
"""The character at which a terminal sends SIGINT, unless the program has changed that."""

_RETRY_S = 0.1

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of all programs.

    Args:
        directory: the allocation's directory.
        host: the name of this host.
        environment: variables of this host, which a client's are added to.
        marks: variables by which `agent.children.sweep` finds processes of this host.
        max_bytes: limit on a file of output, config key `logs.max_file_bytes`.
    """

    directory: Path
    host: str
    environment: Mapping[str, str]
    marks: Mapping[str, str]
    max_bytes: int


def settings_of(args: AgentArgs, max_bytes: int) -> HostSettings:
    """The settings of an agent's programs."""
    marks = {COOKIE: args.allocation, HOST_COOKIE: str(args.rank)}
    return HostSettings(args.directory, args.name, without_step(args.environment), marks, max_bytes)


class Program:
    """A program from its start to its end. All methods must be called on the engine's driver.

    Args:
        environment: all its variables.
        wrote: called after it has written.
        started: called once its record is written.
        exited: called with its exit once its process has ended.
        drained: called once its process has ended, and all its output is in the files.

    Attributes:
        pid: its process.
        written: number of bytes of output so far.
        end: how it ended; None before.
        feed: its input; None if it has none.
        was_killed: whether a signal has ended it that no client has sent.

    Raises:
        OSError: out of descriptors, memory or processes; nothing was started.
    """

    def __init__(
        self,
        engine: Engine,
        reaper: Reaper,
        settings: HostSettings,
        order: StartProgram,
        environment: Mapping[str, str],
        wrote: Callable[[], None],
        started: Callable[[], None],
        exited: Callable[[ProgramExit], None],
        drained: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._reaper = reaper
        self._settings = settings
        self._order = order
        self._wrote = wrote
        self._started = started
        self._exited = exited
        self._drained = drained
        self._killer: Timer | None = None
        self._limit: Timer | None = None
        self._late = False
        self.written = 0
        self.end: ProgramExit | None = None
        self.feed: Feed | None = None
        self.was_killed = False
        self._signalled = False
        self.pid = self._start(environment)
        self._pump.start()
        if order.limit_s > 0:
            self._limit = engine.call_later(order.limit_s, self._on_limit)

    def _start(self, environment: Mapping[str, str]) -> int:
        order = self._order
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs:

            def ours(fd: int) -> int:
                on_failure.callback(os.close, fd)
                return fd

            def give(fd: int) -> int:
                theirs.callback(os.close, fd)
                return fd

            def pipe() -> tuple[int, int]:
                read, write = os.pipe()
                return ours(read), give(write)

            inlet = -1
            if order.terminal:
                master, slave = os.openpty()
                out, stdin = ours(master), give(slave)
                resize(out, order.terminal[0], order.terminal[1])
                outputs, inlet = {OUT: out}, ours(os.dup(out))
                stdout = stderr = stdin
            else:
                (out, stdout), (err, stderr) = pipe(), pipe()
                outputs = {OUT: out, ERR: err}
                if order.reads:
                    read, write = os.pipe()
                    stdin, inlet = give(read), ours(write)
                else:
                    stdin = give(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            path = str(Path(launcher.__file__).absolute())
            words = [str(os.getpid()), order.cwd, str(order.umask), *order.argv]
            process = launch(
                [sys.executable, "-P", "-I", "-S", path, *words],
                environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                new_session=True,
            )
            process.returncode = 0  # the reaper waits for it, not this object
            try:
                self._reaper.watch(process.pid, self._on_exit)
                log = OutputLog(run_folder(self._settings.directory, order.run), self._settings.max_bytes)
                self._pump = Pump(
                    order.run, outputs, log, partial(self._record, process), self._on_written, self._on_end
                )
            except BaseException:
                os.kill(process.pid, signal.SIGKILL)
                raise
            on_failure.pop_all()
        if inlet >= 0:
            self.feed = Feed(self._engine, inlet, terminal=bool(order.terminal))
        return process.pid

    # ---- requests ----

    def signal(self, number: int, group: bool, grace_s: float) -> None:
        """Send the process, or its group, a signal; SIGKILL after *grace_s* seconds unless that is negative."""
        if self.end is not None:
            return
        self._signalled = True
        if number == signal.SIGINT and group and self._order.terminal and self.feed is not None:
            self.feed.interrupt(_INTERRUPT)
        else:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)
        if grace_s >= 0:
            self.kill_in(grace_s)

    def _on_limit(self) -> None:
        self._late = True
        self.signal(signal.SIGTERM, True, self._order.grace_s)

    def kill_in(self, grace_s: float) -> None:
        """Kill it and its group in *grace_s* seconds, or at the earlier time that was given before."""
        if self._killer is None or self._killer.at_s > self._engine.clock() + grace_s:
            if self._killer is not None:
                self._killer.cancel()
            self._killer = self._engine.call_later(grace_s, partial(self.signal, signal.SIGKILL, True, -1.0))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal, if it has one."""
        if self._order.terminal and self.feed is not None:
            self.feed.resize(rows, columns)

    # ---- the end ----

    def _on_exit(self, how: Exit) -> None:
        code = how.code if how.code is not None else 128 + (how.signal or 0)
        self.end = ProgramExit(code, str(how))
        if self._late:
            self.end = ProgramExit(TIMED_OUT, f"its limit of {self._order.limit_s:g} s was over: {how}")
        self.was_killed = how.signal is not None and not self._signalled
        for timer in (self._killer, self._limit):
            if timer is not None:
                timer.cancel()
        if self.feed is not None:
            self.feed.close()
        self._pump.finish()
        self._exited(self.end)

    # ---- on the pump's thread ----

    def _record(self, process: subprocess.Popen[bytes]) -> None:
        order, settings = self._order, self._settings
        record = ProgramRecord(
            run=order.run,
            title=order.title,
            host=settings.host,
            pid=process.pid,
            terminal=bool(order.terminal),
            reads=order.reads,
            at_s=int(time.time()),
        )
        try:
            write_program(settings.directory, record)
        except (OSError, ConfigError) as error:
            _log.warning("cannot record the program of run %s: %s", order.run, error)
        self._engine.call_soon(self._started)

    def _on_written(self, num_bytes: int) -> None:
        def tell() -> None:
            self.written = num_bytes
            self._wrote()

        self._engine.call_soon(tell)

    def _on_end(self) -> None:
        end = self.end
        if end is not None:
            try:
                write_exit(self._settings.directory, self._order.run, end)
            except (OSError, ConfigError) as error:
                _log.warning("cannot record the end of run %s: %s", self._order.run, error)
        self._engine.call_soon(self._on_drained)

    def _on_drained(self) -> None:
        if self.end is None:  # the pump failed
            self.kill_in(0.0)
            self._engine.call_later(_RETRY_S, self._on_drained)
            return
        self._pump.close()
        self._drained()
