"""The embedded allocation: agents as child processes on this machine, for the lifetime of one program."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from monarch_hpc.agent.children.sweep import cookies, sweep
from monarch_hpc.agent.resources.shm_folder import remove_segments
from monarch_hpc.allocation import files as allocation_files
from monarch_hpc.allocation.ready import read_ready
from monarch_hpc.allocation.settings import write_config
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AgentsMissing, AllocationError, ConfigError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.storage.files import open_output, private_dir
from monarch_hpc.core.storage.scratch import PREFIX, hold_scratch, make_scratch
from monarch_hpc.wire.start import DEFAULT_ENTRY

__all__ = ["find_local", "open_local"]

_POLL_S = 0.005
_END_S = 15.0
"""Time that agents may take to end; their own deadlines are shorter."""
_SWEEP_S = 5.0
_NUM_LAST_LINES = 20


@contextlib.contextmanager
def open_local(
    num_hosts: int, config: Config, directory: Path | None = None, *, entry: str = DEFAULT_ENTRY
) -> Iterator[Path]:
    """Make an allocation of *num_hosts* hosts that all are this machine; yield its directory.

    The agents are processes of this machine that listen on loopback only, named ``local0``, ``local1``, ...
    They and everything they started end with the context, or with this process, however it ends.

    Args:
        directory: the allocation's directory, created if missing; by default a fresh one in ``$XDG_RUNTIME_DIR`` or
            the temporary directory. It is removed at the end.
        entry: ``module:function`` that procs run.

    Raises:
        AgentsMissing: an agent did not report before the deadline (config key `slurm.bootstrap_s`).
        AllocationError: an agent ended before it was ready.
    """
    allocation, own = new_allocation_id(), os.getpid()
    where, held = _make_directory(directory)
    try:
        key = os.urandom(allocation_files.KEY_BYTES)
        _prepare(where, key, config)
        with _Agents(where, held) as agents:
            for rank in range(num_hosts):
                argv = [
                    *(sys.executable, "-P", "-m", "monarch_hpc.agent"),
                    *("--directory", str(where), "--allocation", allocation),
                    *("--rank", str(rank), "--num-hosts", str(num_hosts)),
                    *("--local", "--lifeline", "--held", str(held), "--entry", entry),
                ]
                agents.start(f"local{rank}", argv, key)
            agents.wait_ready(config.slurm.bootstrap_s)
            yield where
    finally:
        if os.getpid() == own:  # a forked child may leave the context, too
            sweep(cookies(allocation), _SWEEP_S)
            for rank in range(num_hosts):  # left by agents that were killed
                remove_segments(allocation, rank)
            shutil.rmtree(where, ignore_errors=True)
            os.close(held)


def find_local() -> dict[str, Path]:
    """Return the directories of this user's embedded allocations that are ready, by name."""
    parents = {Path(parent) for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()) if parent}
    found: dict[str, Path] = {}
    for parent in parents:
        for directory in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError, ConfigError):
                if directory.stat().st_uid == os.getuid() and read_ready(directory) is not None:
                    found[directory.name] = directory
    return found


def _make_directory(directory: Path | None) -> tuple[Path, int]:
    """Return the directory, and the descriptor that holds it, see `core.storage.scratch`."""
    if directory is not None:
        return private_dir(directory), hold_scratch(directory)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return make_scratch(Path(runtime if runtime and os.access(runtime, os.W_OK) else tempfile.gettempdir()))


def _prepare(directory: Path, key: bytes, config: Config) -> None:
    allocation_files.write_key(directory, key)
    write_config(directory, config)


class _Agents:
    """The agents' processes; ended with the context."""

    def __init__(self, directory: Path, held: int) -> None:
        self._directory = directory
        self._held = held
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """In a forked child: close its copies of the agents' pipes, so that the agents end with the *parent* alone."""
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.returncode = 0  # the parent's child, which cannot be waited for here
        self._processes.clear()

    def __enter__(self) -> _Agents:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = Deadline(_END_S)
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

    def start(self, name: str, argv: Sequence[str], key: bytes) -> None:
        """Start one process, with stdout and stderr in ``NAME.err``."""
        descriptor = open_output(self._err(name))
        try:
            process = launch(
                argv,
                stdin=subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                pass_fds=[self._held],
                new_session=True,
            )
        finally:
            os.close(descriptor)
        self._processes[name] = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; `wait_ready` says why
            process.stdin.write(key)
            process.stdin.flush()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until all agents have joined the head."""
        name = self._directory.name
        deadline = Deadline(timeout_s)
        while (ready := read_ready(self._directory)) is None:
            for agent, process in self._processes.items():
                code = process.poll()
                if code is not None:
                    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
                    lines = "".join(f"\n    {line}" for line in self._last_lines(agent))
                    raise AllocationError(name, f"the agent {agent} ended ({how}):{lines or ' it wrote nothing'}")
            if deadline.passed():
                raise AgentsMissing(name, timeout_s, {agent: self._last_lines(agent) for agent in self._processes})
            time.sleep(_POLL_S)
        if ready.missing:
            raise AgentsMissing(name, timeout_s, {agent: self._last_lines(agent) for agent in ready.missing})

    def _err(self, name: str) -> Path:
        return self._directory / f"{name}.err"

    def _last_lines(self, name: str) -> list[str]:
        path = self._err(name if name in self._processes else next(iter(self._processes)))
        with contextlib.suppress(OSError):
            return path.read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:]
        return []
