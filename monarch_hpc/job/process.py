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

from monarch_hpc.agent.spawn import launch
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.job.current import load_current_job
from monarch_hpc.job.state import JobState, cut
from monarch_hpc.job.trait import JobTrait
from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.workers import attach_to_workers

__all__ = ["ProcessJob", "hosts_from_config"]

_WORKER = "from monarch_hpc.actor import run_worker_loop_forever as run; run(address={address!r}, private_key={key!r})"
_POLL_S = 0.01
_END_S = 20.0
"""How long workers may take to end; agents and procs have deadlines of their own before that."""

_NUM_UNNAMED = 2
"""Hosts where no configuration says how many: the fewest with which a program shows that it can deal with several."""


class ProcessJob(JobTrait):
    """Each host is a worker process of this machine: several hosts without a cluster.

    The workers outlive the program, and the next one that asks for the same finds them.

    Args:
        meshes: number of hosts by name.
        env: variables for the workers, and so for all procs, beside those of this process.

    Raises:
        ValueError: a mesh has no host.
    """

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        if not meshes or min(meshes.values()) < 1:
            raise ValueError(f"the meshes {dict(meshes)} need a host each, at least")
        self._meshes = dict(meshes)
        self._env = dict(env or {})
        self._directory = ""
        self._pids: list[int] = []
        self._hosts: HostMesh | None = None
        self._children: list[subprocess.Popen[bytes]] = []

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_hosts": None, "_children": []}

    def spec(self) -> Mapping[str, object]:
        """Meshes and variables."""
        return {"meshes": self._meshes, "env": self._env}

    def alive(self) -> bool:
        """Whether all workers run."""
        return bool(self._pids) and all(self._runs(pid) for pid in self._pids)

    def _runs(self, pid: int) -> bool:
        for child in self._children:
            if child.pid == pid:
                return child.poll() is None
        # By its command line, too: numbers are used again.
        with contextlib.suppress(OSError):
            return self._directory.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def _address(self, index: int) -> str:
        return f"ipc://{self._directory}/worker{index}"

    def _create(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="monarch-hpc-job-")
        key = Path(self._directory) / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        try:
            for index in range(sum(self._meshes.values())):
                code = _WORKER.format(address=self._address(index), key=str(key))
                with open(Path(self._directory) / f"worker{index}.err", "ab") as err:
                    self._children.append(
                        launch(
                            [sys.executable, "-c", code],
                            {**os.environ, **self._env},
                            stdin=subprocess.DEVNULL,
                            stdout=err.fileno(),
                            stderr=err.fileno(),
                            new_session=True,
                        )
                    )
                self._pids.append(self._children[-1].pid)
        except BaseException:
            self._kill()
            raise

    def _state(self) -> JobState:
        if self._hosts is None:
            if not self.alive():
                raise AllocationError("workers", f"a worker of this job has ended; see {self._directory}/worker*.err")
            workers = [self._address(index) for index in range(len(self._pids))]
            self._hosts = attach_to_workers(private_key=f"{self._directory}/key", workers=workers)
        return cut(self._hosts, self._meshes)

    def _kill(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = Deadline(_END_S)
            for pid in filter(self._runs, self._pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while any(self._runs(pid) for pid in self._pids) and not deadline.passed():
                time.sleep(_POLL_S)
        self._children, self._pids, self._hosts = [], [], None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end_with_program(self) -> None:
        atexit.register(self.kill)


def hosts_from_config(name: str) -> HostMesh:
    """The mesh called *name* of the job that this directory works with, see `set_current_job`.

    Where no job was named, two workers on this machine, which end with the program.

    Raises:
        AttributeError: the job has no such mesh.
    """
    try:
        job = load_current_job()
    except FileNotFoundError:
        return getattr(ProcessJob({name: _NUM_UNNAMED}).state(cached_path=None), name)  # type: ignore[no-any-return]
    return getattr(job.state(), name)  # type: ignore[no-any-return]  # a JobState gives meshes
