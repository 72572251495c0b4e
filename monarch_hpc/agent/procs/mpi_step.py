"""MPI meshes: procs as tasks of a Slurm step of their own, so that MPI finds its ranks: `spawn_procs(mpi=True)`.

The agent of the mesh's first host starts the step. Each task connects to its host's agent on a socket in a folder
that only this user can enter, gets the order that a zygote would get, and stays as its proc's parent: see
`agent.procs.mpi_task`.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.procs.mpi_task import peer_uid, socket_path
from monarch_hpc.agent.procs.zygote_order import FDS_PER_PROC, render, split, versions
from monarch_hpc.agent.procs.zygote_pool import ForkProblem, Spawned
from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.config import FlagValue
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.procs import SpawnProcs
from monarch_hpc.wire.start import ProcOrder, render_order

__all__ = ["MpiSteps", "StepSettings"]

_MAX_OUTPUT_BYTES = 64 << 10
_NUM_LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Settings common to all steps of an agent.

    Args:
        entry: ``module:function`` that procs run.
        sockets: the host's folder for sockets, see `agent.resources.shm_folder`; empty if there is none.
        job_id: the Slurm job; None if the allocation is not a Slurm job.
        host_names: Slurm's node names by rank.
        flags: the options of the agents' step; an MPI step overrides some.
        environment: the agent's environment.
        component: of a heterogeneous job, that has this host; -1 in any other.
    """

    allocation: str
    host_rank: int
    num_gpus: int
    num_cpus: int
    entry: str
    directory: Path
    sockets: str
    job_id: int | None
    host_names: Sequence[str]
    flags: Mapping[str, FlagValue]
    environment: Mapping[str, str]
    component: int = -1

    @classmethod
    def of(
        cls, args: AgentArgs, grant: Grant, entry: str, sockets: str, flags: Mapping[str, FlagValue]
    ) -> StepSettings:
        """The settings of the agent with *args*, on a host with the resources in *grant*."""
        return cls(
            allocation=args.allocation,
            host_rank=args.rank,
            num_gpus=len(grant.gpus),
            num_cpus=len(grant.cpus),
            entry=entry,
            directory=args.directory,
            sockets=sockets,
            job_id=args.job_id if (args.directory / "task.sh").exists() else None,
            host_names=args.host_names,
            flags=flags,
            environment=args.environment,
            component=args.component,
        )


class MpiSteps:
    """The procs of this host that are tasks of steps. All methods must be called on the engine's driver."""

    def __init__(self, engine: Engine, reaper: Reaper, settings: StepSettings) -> None:
        self._engine = engine
        self._reaper = reaper
        self._settings = settings
        self._gatherings: dict[tuple[str, int], _TaskGathering] = {}
        self._tasks: dict[int, _Task] = {}

    @property
    def watched(self) -> Collection[int]:
        """The pids of procs that have not been reaped, so that the pids cannot have been reused."""
        return self._tasks.keys()

    def spawn(self, order: SpawnProcs, request: ProcOrder, fds: Sequence[int], done: Callable[[Spawned], None]) -> None:
        """Start the procs of *request*; otherwise like `ZygotePool.spawn`.

        Raises:
            ValueError: the allocation is not a Slurm job, or there is no folder for the socket.
            OSError: the socket or srun cannot be created.
        """
        if self._settings.job_id is None:
            raise ValueError(
                "mpi=True needs a Slurm job, whose srun starts the procs; this allocation is not a Slurm job"
            )
        if not self._settings.sockets:
            raise ValueError(
                "mpi=True needs the agent's folder in /dev/shm, which could not be made; the agent's log says why"
            )
        gathering = _TaskGathering(self._engine, self._settings, order, request, fds, done, self._tasks)
        key = order.run, order.mesh
        self._gatherings[key] = gathering
        gathering.closed = lambda: self._gatherings.pop(key, None)
        if order.hosts[0] == self._settings.host_rank:
            try:
                gathering.start(self._reaper)
            except OSError:
                gathering.close()
                raise

    def watch(self, pid: int, ended: Callable[[Exit], None]) -> None:
        """Call *ended* once, on the driver, after the proc has exited."""
        task = self._tasks[pid]
        task.ended = ended
        if task.over:
            self._engine.call_soon(task.report_exit)

    def abandon(self, run: str, mesh: int) -> None:
        """Stop waiting for the tasks of a mesh that was given up."""
        gathering = self._gatherings.get((run, mesh))
        if gathering is not None:
            gathering.fail("it was given up", [])

    def close(self) -> None:
        """Disconnect from all tasks, which then kill their procs."""
        for gathering in list(self._gatherings.values()):
            gathering.fail("the allocation is being released", [])
        for task in list(self._tasks.values()):
            task.close()


class _TaskGathering:
    """Waits for the tasks of one mesh on this host to connect and fork their procs."""

    def __init__(
        self,
        engine: Engine,
        settings: StepSettings,
        order: SpawnProcs,
        request: ProcOrder,
        fds: Sequence[int],
        done: Callable[[Spawned], None],
        tasks: dict[int, _Task],
    ) -> None:
        self.engine = engine
        self.tasks = tasks
        self.closed: Callable[[], object] = lambda: None
        self._settings = settings
        self._order = order
        self._request = request
        self._done: Callable[[Spawned], None] | None = done
        self._pids: dict[int, int] = {}
        self._connected: set[_Task] = set()
        self._step: subprocess.Popen[bytes] | None = None
        self._output_fd = -1
        self._path = socket_path(settings.sockets, order.run, order.mesh)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self._path)
            self._listener.listen(order.per_host)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self._fds = [os.dup(fd) for fd in fds]
        engine.watch(self._listener.fileno(), self._accept)
        self._timer = engine.call_later(order.deadline_s, lambda: self.fail(self._late_problem(), self._last_lines()))

    def start(self, reaper: Reaper) -> None:
        """Start the step, for all hosts of the mesh."""
        # A late import: few meshes need a step, and the Slurm modules would add a sixth to what an agent loads.
        from monarch_hpc.slurm.commands.argv import mpi_step_argv, scrubbed

        settings, order = self._settings, self._order
        assert settings.job_id is not None
        command = [
            *("bash", str(settings.directory / "task.sh"), order.python or sys.executable),
            *(settings.allocation, order.run, str(order.mesh), *map(str, order.hosts)),
        ]
        argv = mpi_step_argv(
            settings.job_id,
            [settings.host_names[host] for host in order.hosts],
            order.per_host,
            {
                **settings.flags,
                "mpi": order.mpi,
                "gres": f"gpu:{settings.num_gpus}" if settings.num_gpus else None,
                "overcommit": order.per_host > settings.num_cpus,
            },
            command,
            settings.component,
        )
        output_fd = os.memfd_create("step")
        try:
            self._step = launch(
                argv,
                scrubbed(settings.environment),
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                new_session=True,
            )
        except OSError as error:
            os.close(output_fd)
            raise OSError(error.errno, f"srun: {error.strerror}") from error
        self._output_fd = output_fd
        reaper.watch(self._step.pid, self._step_ended)

    def _step_ended(self, how: Exit) -> None:
        assert self._step is not None
        self._step.returncode = how.code if how.code is not None else -(how.signal or 0)
        cause = f"srun, which was to start it, ended: {how} (config key 'procs.mpi' names the plugin)"
        self.fail(cause, self._last_lines())
        os.close(self._output_fd)
        self._output_fd = -1

    def _late_problem(self) -> str:
        return f"its task did not come within {self._order.deadline_s:g} s (config key 'procs.start_s')"

    def _last_lines(self) -> list[str]:
        if self._output_fd < 0:
            return []
        text = os.pread(self._output_fd, _MAX_OUTPUT_BYTES, 0).decode(errors="replace")
        return text.splitlines()[-_NUM_LAST_LINES:]

    def _accept(self, _mask: int) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            if peer_uid(sock) != os.getuid():
                sock.close()
            else:
                self._connected.add(_Task(self, sock))

    def answer(self, sock: socket.socket, local_rank: int, task_versions: list[str]) -> str:
        """Send a task its order; return why it is refused, empty if it is not."""
        if task_versions != versions():
            found, wanted = " with ".join(task_versions), " with ".join(versions())
            return f"{self._order.python or sys.executable} is {found}; the program and its hosts are {wanted}"
        ranks = [start.local_rank for start in self._request.starts]
        if self._done is None or local_rank not in ranks:
            return "the mesh was given up"
        index = ranks.index(local_rank)
        request = replace(self._request, starts=[self._request.starts[index]])
        message = render(
            {"order": render_order(request), "entry": self._settings.entry, "preload": self._order.preload}
        )
        fds = array.array("i", self._fds[index * FDS_PER_PROC : (index + 1) * FDS_PER_PROC])
        sock.setblocking(True)  # the task reads nothing else, so this cannot block for long
        socket.send_fds(sock, [message[:1]], list(fds))
        sock.sendall(message[1:])
        sock.setblocking(False)
        return ""

    def on_forked(self, local_rank: int, pid: int) -> None:
        """Record that a task has forked its proc."""
        self._pids[local_rank] = pid
        if len(self._pids) == len(self._request.starts) and self._done is not None:
            done, self._done = self._done, None
            self.close()
            done([self._pids[start.local_rank] for start in self._request.starts])

    def on_task_gone(self, task: _Task) -> None:
        """Forget a task that has disconnected."""
        self._connected.discard(task)

    def fail(self, cause: str, last_lines: list[str]) -> None:
        """Give up the mesh unless all its procs have been forked."""
        done, self._done = self._done, None
        if done is None:
            return
        for task in list(self._connected):
            task.close()
        for pid in self._pids.values():
            self.tasks.pop(pid, None)
        if self._step is not None and self._step.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # On SIGTERM srun ends the step.
                os.kill(self._step.pid, signal.SIGTERM)
        self.close()
        done(ForkProblem(cause, last_lines))

    def close(self) -> None:
        """Stop accepting tasks."""
        self._timer.cancel()
        if self._listener.fileno() >= 0:
            self.engine.unwatch(self._listener.fileno())
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):  # the folder may have been removed already
                os.unlink(self._path)
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        self.closed()


class _Task:
    """The agent's connection to one task."""

    def __init__(self, gathering: _TaskGathering, sock: socket.socket) -> None:
        self.ended: Callable[[Exit], None] | None = None
        self._gathering = gathering
        self._sock = sock
        self._incoming = b""
        self._local_rank = -1
        self._pid = 0
        self._exit: Exit | None = None
        sock.setblocking(False)
        gathering.engine.watch(sock.fileno(), self._on_ready)

    def close(self) -> None:
        """Disconnect from the task, which then kills its proc."""
        if self.over:
            return
        self._gathering.engine.unwatch(self._sock.fileno())
        self._sock.close()
        self._gathering.on_task_gone(self)
        if self.ended is not None:
            self.report_exit()

    @property
    def over(self) -> bool:
        """Whether the connection is closed."""
        return self._sock.fileno() < 0

    def report_exit(self) -> None:
        """Report how the proc ended; the callback may be set only after the end."""
        self._gathering.tasks.pop(self._pid, None)
        assert self.ended is not None
        self.ended(self._exit or Exit(None, int(signal.SIGKILL)))

    def _on_ready(self, _mask: int) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        messages, self._incoming = split(self._incoming + data)
        for message in messages:
            self._handle(json.loads(message))
        if not data or self._exit is not None:
            self.close()

    def _handle(self, message: dict[str, object]) -> None:
        match message:
            case {"local_rank": int(local_rank), "versions": list(task_versions)}:
                self._local_rank = local_rank
                try:
                    problem = self._gathering.answer(
                        self._sock, local_rank, [str(version) for version in task_versions]
                    )
                except OSError as error:
                    problem = f"its task is gone: {error.strerror}"
                if problem:
                    self._gathering.fail(problem, [])
            case {"pid": int(pid)}:
                self._pid = pid
                self._gathering.tasks[pid] = self
                self._gathering.on_forked(self._local_rank, pid)
            case {"exited": int(code)}:
                self._exit = Exit(code, None)
            case {"killed": int(number)}:
                self._exit = Exit(None, number)
