"""Agents as child processes on this machine, which start before their allocation's configuration is known.

An agent needs its configuration and its key only when it has loaded its modules, which takes as long as loading those
of the program. So the first use of hosts in a program starts the agent of the embedded allocation that it will need,
and then loads what the program itself needs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.config.program import read_program
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AgentsMissing, AllocationError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.process.streams import fill_standard_streams
from monarch_hpc.core.storage.files import open_output, private_dir
from monarch_hpc.core.storage.scratch import hold_scratch, make_scratch, temporary_folder
from monarch_hpc.core.storage.shortage import explained, full_note

if TYPE_CHECKING:
    from monarch_hpc.config.schema import Config

__all__ = ["LocalAgents", "expect_embedded", "take_expected"]

_END_S = 15.0
"""Time that agents may take to end; their own deadlines are shorter."""
_SWEEP_S = 5.0
_CHECK_S = 0.1
"""Interval between looks at whether an agent has ended; the end of the wait itself is an event."""
_NUM_LAST_LINES = 20


class LocalAgents:
    """The agents of an allocation whose hosts all are this machine, and its directory. Use `open`, then `close`.

    Args:
        directory: the allocation's directory, created if missing; None for a fresh one in ``$XDG_RUNTIME_DIR`` or the
            temporary directory. It is removed by `close`.
        entry: ``module:function`` that procs run; empty for the agents' own default.

    Raises:
        ConfigError: the place for the directory is not safe.
        OSError: the directory or a process cannot be made.
    """

    def __init__(self, num_hosts: int, directory: Path | None = None, entry: str = "") -> None:
        self.allocation = new_allocation_id()
        fill_standard_streams()
        self.directory, self._held = _make_directory(directory)
        self._num_hosts = num_hosts
        self._own = os.getpid()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with explained():
            self._ready, ready = os.pipe()
        watch_forks(self)
        try:
            for rank in range(num_hosts):
                argv = [
                    *(sys.executable, "-P", "-m", "monarch_hpc.agent"),
                    *("--directory", str(self.directory), "--allocation", self.allocation),
                    *("--rank", str(rank), "--num-hosts", str(num_hosts)),
                    *("--local", "--relaunches", "--lifeline", "--held", str(self._held)),
                    *(("--entry", entry) if entry else ()),
                    *(("--ready", str(ready)) if rank == 0 else ()),
                ]
                self._start(f"local{rank}", argv, [self._held, *([ready] if rank == 0 else [])])
        except BaseException:
            self.close()
            raise
        finally:
            os.close(ready)

    def open(self, config: Config, meanwhile: Callable[[], object] | None = None) -> None:
        """Give the agents their configuration and their key; return when all have joined the head.

        Args:
            meanwhile: called before the wait, for work that the caller would otherwise do after it.

        Raises:
            AgentsMissing: an agent did not report before the deadline (config key `slurm.bootstrap_s`).
            AllocationError: an agent ended before it was ready.
        """
        from monarch_hpc.allocation import files as allocation_files
        from monarch_hpc.allocation.settings import write_config

        key = os.urandom(allocation_files.KEY_BYTES)
        # The agents end with the machine, and leave nothing that one that comes up again could use.
        allocation_files.write_key(self.directory, key, durable=False)
        write_config(self.directory, config, durable=False)
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended; `_wait_ready` says why
                process.stdin.write(key)
                process.stdin.flush()
        if meanwhile is not None:
            meanwhile()
        self._wait_ready(config.slurm.bootstrap_s)

    def close(self) -> None:
        """End the agents and everything they started, and remove the directory. In a forked child: nothing."""
        if os.getpid() != self._own:
            return
        import shutil

        from monarch_hpc.agent.children.predecessor import end_agents
        from monarch_hpc.agent.children.sweep import cookies, sweep
        from monarch_hpc.agent.resources.shm_folder import remove_segments

        os.close(self._ready)
        deadline = Deadline(_END_S)
        self._end(deadline)
        end_agents(self.allocation, self.allocation, deadline.left_s())
        sweep(cookies(self.allocation), _SWEEP_S)
        for rank in range(self._num_hosts):  # left by agents that were killed
            remove_segments(self.allocation, rank)
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._held)

    def forked(self, parent: int) -> None:
        """In a forked child: close its copies of the agents' pipes, so that the agents end with the *parent* alone."""
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.returncode = 0  # the parent's child, which cannot be waited for here
        self._processes.clear()

    def _start(self, name: str, argv: list[str], pass_fds: list[int]) -> None:
        """Start one process, with stdout and stderr in ``NAME.err``."""
        descriptor = open_output(self._err(name))
        try:
            self._processes[name] = launch(
                argv,
                stdin=subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                pass_fds=pass_fds,
                new_session=True,
            )
        finally:
            os.close(descriptor)

    def _wait_ready(self, timeout_s: float) -> None:
        from monarch_hpc.allocation.ready import read_ready

        name = self.directory.name
        deadline = Deadline(timeout_s)
        waiting = select.poll()
        waiting.register(self._ready, select.POLLIN)
        while (ready := read_ready(self.directory)) is None:
            for agent, process in self._processes.items():
                code = process.poll()
                if code is not None:
                    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
                    lines = "".join(f"\n    {line}" for line in self._last_lines(agent))
                    nothing = (
                        f" it wrote nothing; {full}" if (full := full_note(self.directory)) else " it wrote nothing"
                    )
                    raise AllocationError(name, f"the agent {agent} ended ({how}):{lines or nothing}")
            if deadline.passed():
                raise AgentsMissing(name, timeout_s, {agent: self._last_lines(agent) for agent in self._processes})
            if waiting.poll(min(_CHECK_S, deadline.left_s()) * 1000) and not os.read(self._ready, 1):
                waiting.unregister(self._ready)  # the head has ended, and is about to be found
        if ready.missing:
            raise AgentsMissing(name, timeout_s, {agent: self._last_lines(agent) for agent in ready.missing})

    def _end(self, deadline: Deadline) -> None:
        for process in self._processes.values():
            # An agent ends when its standard input ends.
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(deadline.left_s())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _err(self, name: str) -> Path:
        return self.directory / f"{name}.err"

    def _last_lines(self, name: str) -> list[str]:
        path = self._err(name if name in self._processes else next(iter(self._processes)))
        with contextlib.suppress(OSError):
            return path.read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:]
        return []


def _make_directory(directory: Path | None) -> tuple[Path, int]:
    """Return the directory, and the descriptor that holds it, see `core.storage.scratch`."""
    if directory is not None:
        return private_dir(directory), hold_scratch(directory)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return make_scratch(Path(runtime))
    return make_scratch(temporary_folder(os.environ))


_expected: list[LocalAgents] = []
"""At most one entry: the agents that a thread in `expect_embedded` has started, until a program takes them."""
_expecting = allocate_lock()


@contextlib.contextmanager
def expect_embedded() -> Iterator[None]:
    """Start the agent of an embedded allocation, which is likely to be opened in this context; end it if it was not.

    Nothing is started for programs that were given an allocation, or run in a Slurm job.
    """
    if read_program().directory is not None or "SLURM_JOB_ID" in os.environ or not _expecting.acquire(blocking=False):
        yield
        return
    try:
        with contextlib.suppress(Exception):  # it fails again where it is used, and is reported there
            _expected.append(LocalAgents(1))
        yield
    finally:
        left = take_expected()
        _expecting.release()
        if left is not None:
            left.close()


def take_expected() -> LocalAgents | None:
    """The agents that `expect_embedded` has started, which the caller must close; None if there are none."""
    try:
        return _expected.pop()
    except IndexError:
        return None
