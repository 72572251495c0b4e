"""A job of worker processes on this machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.storage.files import open_output, write_private
from monarch_hpc.core.storage.scratch import make_scratch
from monarch_hpc.job.current import load_current_job
from monarch_hpc.job.state import JobState, check_env, check_meshes, cut
from monarch_hpc.job.trait import JobTrait
from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.workers import attach_to_workers

__all__ = ["STAY", "ProcessJob", "hosts_from_config"]

STAY = b"stay\n"
"""Written to a worker's standard input: the worker must outlive the program that started it."""

_WORKER = "monarch_hpc.job.worker"
"""By name, because that module is a program that imports this one."""
_POLL_S = 0.01
_END_S = 20.0
"""Time limit for workers to end, longer than the deadlines of their agents and procs."""

_NUM_LAST_LINES = 10
"""Lines of output quoted from a worker that has ended."""

_NUM_UNNAMED = 2
"""Default number of hosts: the fewest that exercise code for several hosts."""


class ProcessJob(JobTrait):
    """A job whose hosts are worker processes on this machine: several hosts without a cluster.

    Once the job is saved, the workers outlive the program, and the next program with the same specification finds them.
    Until then they end with the program, however it ends, since no other program could find them.

    Args:
        meshes: number of hosts by mesh name.
        env: variables for the workers, and thus for all procs, in addition to those of this process.

    Raises:
        TypeError: an argument of another type.
        ValueError: there is no mesh, or a mesh without a host.
    """

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._meshes = check_meshes(meshes)
        if not self._meshes:
            raise ValueError("meshes is empty: give at least one, {'workers': 2}")
        self._env = check_env(env)
        self._directory = ""
        self._pids: list[int] = []
        self._hosts: HostMesh | None = None
        self._children: list[subprocess.Popen[bytes]] = []

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_hosts": None, "_children": []}

    def spec(self) -> Mapping[str, object]:
        """The number of hosts of each mesh, and the variables."""
        return {"meshes": self._meshes, "env": self._env}

    def alive(self) -> bool:
        """Whether all workers are running."""
        return bool(self._pids) and all(self._runs(pid) for pid in self._pids)

    def _runs(self, pid: int) -> bool:
        for child in self._children:
            if child.pid == pid:
                return child.poll() is None
        # The command line is checked too, because process ids are reused.
        with contextlib.suppress(OSError):
            return self._directory.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def _address(self, index: int) -> str:
        return f"ipc://{self._directory}/worker{index}"

    def _create(self, client_script: str | None) -> None:
        directory, held = make_scratch(Path(tempfile.gettempdir()), "job-")
        self._directory = str(directory)
        try:
            write_private(directory / "key", os.urandom(32))
            for index in range(sum(self._meshes.values())):
                err = open_output(directory / f"worker{index}.err")
                try:
                    self._children.append(
                        launch(
                            [sys.executable, "-P", "-m", _WORKER, self._address(index), str(directory), str(held)],
                            {**os.environ, **self._env},
                            stdin=subprocess.PIPE,
                            stdout=err,
                            stderr=err,
                            pass_fds=[held],
                            new_session=True,
                        )
                    )
                finally:
                    os.close(err)
                self._pids.append(self._children[-1].pid)
        except BaseException:
            self._kill()
            raise
        finally:
            os.close(held)  # the workers hold it

    def _state(self) -> JobState:
        if self._hosts is None:
            if not self.alive():
                raise AllocationError("workers", f"a worker of this job has ended; it wrote last:{self._last_lines()}")
            workers = [self._address(index) for index in range(len(self._pids))]
            self._hosts = attach_to_workers(private_key=f"{self._directory}/key", workers=workers)
        return cut(self._hosts.apart(), self._meshes)

    def _kill(self) -> None:
        if self._hosts is not None:
            self._hosts.shutdown()
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = Deadline(_END_S)
            for pid in filter(self._runs, self._pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while any(self._runs(pid) for pid in self._pids) and not deadline.passed():
                time.sleep(_POLL_S)
        self._close_stdin(b"")
        self._children, self._pids, self._hosts = [], [], None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _clear(self) -> None:
        self._kill()  # ends the workers that still run, and removes the folder

    def _end_with_program(self) -> None:
        atexit.register(self.kill)
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """Leave the workers alone in a fork: they belong to *parent*, and end with it."""
        atexit.unregister(self.kill)
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
        self._children, self._pids, self._hosts = [], [], None

    def _outlive_program(self) -> None:
        self._close_stdin(STAY)

    def _close_stdin(self, last: bytes) -> None:
        """Write *last* to the workers' standard input and close it; workers end at its end, except after `STAY`."""
        for child in self._children:
            if child.stdin is not None and not child.stdin.closed:
                with contextlib.suppress(BrokenPipeError):  # the worker has ended
                    child.stdin.write(last)
                    child.stdin.close()

    def _last_lines(self) -> str:
        lines: list[str] = []
        for index, pid in enumerate(self._pids):
            if not self._runs(pid):
                with contextlib.suppress(OSError):
                    output = (Path(self._directory) / f"worker{index}.err").read_text(errors="replace")
                    lines = output.splitlines()[-_NUM_LAST_LINES:]
        return "".join(f"\n    {line}" for line in lines) or " nothing"


def hosts_from_config(name: str) -> HostMesh:
    """The mesh called *name* of the current job of the working directory, see `set_current_job`.

    Without a current job, the mesh has two worker processes on this machine, which end with the program.

    Raises:
        AttributeError: the job has no such mesh.
        AllocationError, ConfigError, ImportError, TypeError: as for `load_current_job` and `JobTrait.state`.
    """
    try:
        job = load_current_job()
    except FileNotFoundError:
        return getattr(ProcessJob({name: _NUM_UNNAMED}).state(cached_path=None), name)  # type: ignore[no-any-return]
    return getattr(job.state(), name)  # type: ignore[no-any-return]  # a JobState gives meshes
