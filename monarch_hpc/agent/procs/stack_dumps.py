"""Reads and samples the stacks of procs with py-spy, a child of the agent for each: also of those that hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.telemetry.observer import is_stopped
from monarch_hpc.telemetry.views.flame import parse_profile, without_profile
from monarch_hpc.telemetry.views.stacks import parse_stacks, without_stack
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, NO_RUN, RUN_COOKIE
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.profiles import ProfileRow
from monarch_hpc.wire.tables.stacks import ThreadStack

__all__ = ["StackDumps"]

_AT_A_TIME = 2
"""py-spy takes a core for 10 to 70 ms, which the procs of the host want, too."""

_ATTEMPTS = 3
"""A proc that runs while it is read may change under py-spy's hands."""

_RATE = 20
"""Samples per second: at a hundred, py-spy takes a tenth of a core for each proc."""

_MAX_BYTES = 16 << 20

_Done = Callable[[list[ThreadStack]], None]
_Profiled = Callable[[list[ProfileRow]], None]


@dataclass(slots=True, eq=False)
class _Dump:
    """One run of py-spy.

    Attributes:
        seconds: how long it samples; 0 to read the stacks once.
        read: takes its output, or raises ValueError.
        fail: takes the problem, if there is no output.
        was_stopped: whether a signal had stopped the proc before.
        late: whether its time is over.
    """

    process: RunProcess
    timeout_s: float
    read: Callable[[bytes], None]
    fail: Callable[[str], None]
    native: bool = False
    seconds: int = 0
    idle: bool = False
    timer: Timer | None = None
    attempt: int = 0
    pid: int = 0
    output: int = -1
    errors: int = -1
    was_stopped: bool = False
    late: bool = False


class StackDumps:
    """The stacks that are being read or sampled, two procs at a time. All methods must be called on the engine's
    driver.

    Args:
        procs: pids of the procs that have not been reaped, which so belong to no other process.
    """

    def __init__(
        self, engine: Engine, reaper: Reaper, allocation: str, host_rank: int, procs: Callable[[], Collection[int]]
    ) -> None:
        self._engine = engine
        self._reaper = reaper
        self._procs = procs
        # By these marks the sweep finds what is left of an agent.
        self._environment = {COOKIE: allocation, HOST_COOKIE: str(host_rank), RUN_COOKIE: NO_RUN}
        self._waiting: deque[_Dump] = deque()
        self._read: set[int] = set()  # pids of the procs that are being read

    def dump(self, process: RunProcess, timeout_s: float, done: _Done, *, native: bool) -> None:
        """Read the stacks of one proc; call *done* with a row for each thread, or with one that names the problem.

        Args:
            native: include frames of native code, for which the proc is stopped some ten milliseconds.
        """

        def read(output: bytes) -> None:
            rows = parse_stacks(output, process, native=native)
            done(rows or [without_stack(process, "it has no Python thread", native=native)])

        def fail(problem: str) -> None:
            done([without_stack(process, problem, native=native)])

        self._add(_Dump(process, timeout_s, read, fail, native=native))

    def profile(self, process: RunProcess, seconds: int, timeout_s: float, done: _Profiled, *, idle: bool) -> None:
        """Sample the stacks of one proc; call *done* with a row for each stack, or with one that names the problem.

        Args:
            seconds: how long.
            idle: sample threads that wait, too.
        """

        def read(output: bytes) -> None:
            done(parse_profile(output.decode(errors="replace"), process, seconds, idle=idle))

        def fail(problem: str) -> None:
            done([without_profile(process, seconds, problem, idle=idle)])

        self._add(_Dump(process, timeout_s, read, fail, seconds=seconds, idle=idle))

    def _add(self, dump: _Dump) -> None:
        dump.timer = self._engine.call_later(dump.timeout_s, partial(self._expire, dump))
        self._waiting.append(dump)
        self._start()

    def _start(self) -> None:
        while len(self._read) < _AT_A_TIME:
            # One at a time can stop a proc.
            dump = next((one for one in self._waiting if one.process.pid not in self._read), None)
            if dump is None:
                return
            self._waiting.remove(dump)
            program = _find_py_spy()
            if dump.process.pid not in self._procs():
                self._fail(dump, "it has no process")
            elif not program:
                self._fail(
                    dump,
                    f"py-spy is not installed for {sys.executable} on {dump.process.host}: "
                    "pip install 'monarch-hpc[telemetry]'",
                )
            else:
                try:
                    self._launch(dump, program)
                except OSError as error:
                    self._fail(dump, f"{program} cannot be run: {error.strerror}")

    def _launch(self, dump: _Dump, program: str) -> None:
        dump.was_stopped = is_stopped(dump.process.pid)
        dump.attempt += 1
        dump.output, dump.errors = os.memfd_create("stacks"), os.memfd_create("errors")
        process = launch(
            [program, *_arguments(dump), "--pid", str(dump.process.pid)],
            self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if dump.seconds else dump.output,
            stderr=dump.errors,
            pass_fds=(dump.output,),
            new_session=True,
        )
        process.returncode = 0  # the reaper waits for it, not this object
        dump.pid = process.pid
        self._read.add(dump.process.pid)
        self._reaper.watch(dump.pid, partial(self._on_exit, dump))

    def _expire(self, dump: _Dump) -> None:
        if dump in self._waiting:
            self._waiting.remove(dump)
            self._fail(dump, f"its turn had not come after {dump.timeout_s:.1f} s: ask for fewer ranks, or wait longer")
        elif dump.pid in self._reaper.watched:
            dump.late = True
            os.kill(dump.pid, signal.SIGKILL)  # its exit is reported

    def _on_exit(self, dump: _Dump, how: Exit) -> None:
        pid = dump.process.pid
        self._read.discard(pid)
        if not dump.was_stopped and dump.native and pid in self._procs() and is_stopped(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # py-spy has left it stopped
        try:
            if dump.late:
                raise ValueError(f"it had not ended after {dump.timeout_s:.1f} s")
            if how.code != 0:
                raise ValueError(_reason(os.pread(dump.errors, 4096, 0).decode(errors="replace")))
            output = os.pread(dump.output, _MAX_BYTES, 0)
            self._finish(dump, partial(dump.read, output))
        except ValueError as error:
            if dump.late or dump.seconds or dump.attempt == _ATTEMPTS:
                self._fail(dump, f"py-spy cannot read it: {error}")
            else:
                _close(dump)
                self._waiting.appendleft(dump)
        self._start()

    def _fail(self, dump: _Dump, problem: str) -> None:
        self._finish(dump, partial(dump.fail, problem))

    def _finish(self, dump: _Dump, tell: Callable[[], None]) -> None:
        tell()  # raises ValueError if the output is wrong, and the dump goes on
        if dump.timer is not None:
            dump.timer.cancel()
        _close(dump)


def _arguments(dump: _Dump) -> list[str]:
    if dump.seconds:
        times = ["--duration", str(dump.seconds), "--rate", str(_RATE), "--nonblocking"]
        output = ["--format", "raw", "--output", f"/dev/fd/{dump.output}"]
        return ["record", *times, *output, *(["--idle"] if dump.idle else [])]
    # Only a proc that runs can be stopped for its native frames.
    mode = "--native" if dump.native and not dump.was_stopped else "--nonblocking"
    return ["dump", "--json", "--full-filenames", mode]


def _close(dump: _Dump) -> None:
    for fd in (dump.output, dump.errors):
        if fd >= 0:
            os.close(fd)
    dump.output = dump.errors = -1


def _find_py_spy() -> str:
    """The program beside this interpreter, or else on the path; empty if there is none."""
    import shutil  # late, as the agent's start is that of its program

    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def _reason(errors: str) -> str:
    """The first line that py-spy has written, and what may help."""
    first = next((line for line in errors.splitlines() if line.strip()), "it ended without a word")
    if "ermission" in errors or "not permitted" in errors:
        first += " (the kernel forbids it: see kernel.yama.ptrace_scope; a container may lack SYS_PTRACE)"
    return first[:500]
