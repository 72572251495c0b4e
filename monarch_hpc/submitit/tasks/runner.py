"""Runs tasks on one host: an actor with a fork server for each submission's environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from submitit.core.utils import JobPaths

from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.ports.port import Port
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.storage.files import read_json
from monarch_hpc.submitit.scheduler import AGAIN_S, JobKey, SignalTasks, StartTasks, TaskEnd
from monarch_hpc.submitit.submission import Submission
from monarch_hpc.submitit.tasks.environment import plan_environment, requeue_path
from monarch_hpc.submitit.tasks.task_order import READY, TaskOrder, encode_order

__all__ = ["Report", "Runner"]

_KEEP = 4
"""Fork servers without a task that are kept for the next one: each has some 40 MB, and starts in half a second."""

_TRIES = 3

_SILENCE_S = AGAIN_S / 2
"""Time in which a fork server reports the end of a task that was killed."""

_LAST_BYTES = 1000
"""Longest quotation of what a fork server that has ended wrote to its error stream."""

_log = Logger(__name__)

Report = tuple[JobKey, TaskEnd]
"""Report of a runner that a task has ended."""

Place = tuple[tuple[str, ...], str, str]
"""Interpreter, working folder and file of variables, which the tasks of a fork server have in common."""


@dataclass(slots=True, eq=False)
class _Task:
    """A task that was started.

    Attributes:
        pid: its process, which leads its group; 0 until it is known.
        signals: what was sent before that: number, and whether to the group.
        killed_s: when it was killed first; None if it was not.
    """

    job: JobKey
    rank: int
    paths: JobPaths
    pid: int
    signals: list[tuple[int, bool]]
    killed_s: float | None = None


class _ForkServer:
    """One fork server and its tasks.

    Args:
        ended: called on its own thread with each end of a task.
        over: called at its end.
    """

    def __init__(
        self, place: Place, marks: Mapping[str, str], ended: Callable[[_Task, str], None], over: Callable[[], None]
    ) -> None:
        argv, cwd, variables = place
        found = read_json(Path(variables))
        environment = {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
        self._words = os.memfd_create("submitit-words")
        # A pipe of their own: what is imported there, such as a third-party plug-in of submitit, may print.
        answers, theirs = os.pipe2(os.O_CLOEXEC)
        self._answers = open(answers, "rb")
        server = [*argv, "-u", "-m", "monarch_hpc.submitit.tasks.fork_server", str(theirs)]
        try:
            self._process = launch(
                ["/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd, *server],
                {**environment, **marks},
                stdin=subprocess.PIPE,
                stdout=self._words,
                stderr=self._words,
                pass_fds=[theirs],
                new_session=True,
            )
        except BaseException:
            self._answers.close()
            os.close(self._words)
            raise
        finally:
            os.close(theirs)
        self._ended = ended
        self._over = over
        self._lock = threading.Lock()
        self.tasks: dict[str, _Task] = {}
        self._number = 0
        threading.Thread(target=self._listen, name="monarch-fork-server", daemon=True).start()

    def start(self, task: _Task, order: Callable[[str], TaskOrder]) -> bool:
        """Start a task; return False if the server has ended."""
        with self._lock:
            self._number += 1
            key = str(self._number)
            self.tasks[key] = task
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(encode_order(order(key)))
            self._process.stdin.flush()
        except OSError:
            with self._lock:
                return self.tasks.pop(key, None) is None  # its end was reported
        return True

    def signal(self, job: JobKey, number: int, *, group: bool) -> None:
        """Send a signal to the tasks of *job*; one that is killed again ends the server if that reports no end."""
        with self._lock:
            for task in self.tasks.values():
                if task.job == job:
                    self._send(task, number, group=group)
                    if number == signal.SIGKILL and self._stands_still(task):
                        _log.warning("a process that starts tasks reports no end of job %s, and is killed", job)
                        self._process.kill()  # its tasks are reported as ended with it

    def close(self) -> None:
        """End the server, and its tasks with it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    @staticmethod
    def _stands_still(task: _Task) -> bool:
        """Whether a task that was killed a while ago has ended, or was never started, without a word of the server.

        A task that the kernel cannot end yet, such as one that waits for a file system, is no fault of the server.
        """
        now_s = monotonic()
        if task.killed_s is None:
            task.killed_s = now_s
        if now_s - task.killed_s < _SILENCE_S:
            return False
        found = read_stat(task.pid) if task.pid else None
        return found is None or found.has_ended

    @staticmethod
    def _send(task: _Task, number: int, *, group: bool) -> None:
        if not task.pid:
            task.signals.append((number, group))
            return
        # The fork server reaps a task before it reports its end here; a process of that id may be another one only
        # after the kernel has used all other ids.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(task.pid, number)

    def _listen(self) -> None:
        for line in self._answers:
            answer = json.loads(line)
            if READY in answer:
                continue
            if "pid" in answer:
                with self._lock:
                    task = self.tasks[answer["key"]]
                    task.pid = answer["pid"]
                    for number, group in task.signals:
                        self._send(task, number, group=group)
                continue
            with self._lock:
                task = self.tasks.pop(answer["key"])
                self._send(task, signal.SIGKILL, group=True)  # the processes that it has left behind
            self._ended(task, answer.get("problem") or _words(answer["code"]))
        code = self._process.wait()
        size = os.fstat(self._words).st_size
        last = os.pread(self._words, _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace").strip()
        os.close(self._words)
        self.close()
        self._answers.close()
        self._over()
        with self._lock:
            left, self.tasks = list(self.tasks.values()), {}
        for task in left:
            problem = f"the process that starts the tasks has ended: {_words(code) or 'exit code 0'}"
            self._ended(task, f"{problem}; it wrote last:\n{last}" if last else problem)


class Runner(Actor):
    """Starts, signals and watches the tasks on its host.

    Args:
        reports: receives a `Report` for each task that has ended.
        gpu_variable: the variable that limits a task to its GPUs.
        marks: variables by which an allocation finds its processes.
    """

    def __init__(self, reports: Port[Report], gpu_variable: str, marks: tuple[str, ...]) -> None:
        self._reports = reports
        self._gpu_variable = gpu_variable
        self._marks = {name: os.environ[name] for name in marks if name in os.environ}
        self._lock = threading.Lock()
        self._servers: dict[Place, _ForkServer] = {}

    @endpoint
    def start(self, submission: Submission, order: StartTasks) -> None:
        """Start tasks; each one's end is reported, also if it could not be started."""
        for rank in order.ranks:
            folder = JobPaths(submission.folder, submission.job_id(order.job[1]), rank)
            task = _Task(order.job, rank, folder, 0, [])
            try:
                self._start(submission, order, task)
            except Exception as error:  # noqa: BLE001 whatever it is, it is the end of this task
                self._ended(task, f"it cannot be started: {error}")

    @endpoint
    def signal(self, order: SignalTasks) -> None:
        """Send the tasks of a job a signal."""
        with self._lock:
            servers = list(self._servers.values())
        for server in servers:
            server.signal(order.job, order.number, group=order.group)

    def _start(self, submission: Submission, order: StartTasks, task: _Task) -> None:
        paths = task.paths
        variables = plan_environment(submission, order.job[1], task.rank, order.hosts, order.gpus, self._gpu_variable)
        out = str(paths.stdout)

        def line(key: str) -> TaskOrder:
            err = out if submission.merged else str(paths.stderr)
            return TaskOrder(key, submission.folder, submission.umask, variables, out, err)

        place = (submission.argv, submission.cwd, submission.environment)
        for _ in range(_TRIES):
            if self._server(place).start(task, line):
                return
            self._forget(place)
        raise OSError("the process that starts the tasks ends at once; 'monarch-hpc logs' has its words")

    def _server(self, place: Place) -> _ForkServer:
        with self._lock:
            server = self._servers.pop(place, None)
            if server is None:
                server = _ForkServer(place, self._marks, self._ended, partial(self._forget, place))
            self._servers[place] = server  # at the end: used last
            idle = [key for key, one in self._servers.items() if not one.tasks and one is not server]
            for key in idle[: max(0, len(idle) - _KEEP)]:
                self._servers.pop(key).close()
        return server

    def _forget(self, place: Place) -> None:
        with self._lock:
            self._servers.pop(place, None)

    def _ended(self, task: _Task, words: str) -> None:
        paths = task.paths
        asks = requeue_path(paths.folder, str(paths.job_id))
        requeue = task.rank == 0 and asks.exists()
        if requeue:
            asks.unlink(missing_ok=True)
        end = TaskEnd(task.rank, words, paths.result_pickle.exists(), requeue)
        try:
            self._reports.send_as(0, (task.job, end))
        except Exception:  # noqa: BLE001 the service is gone, and this process ends with it
            _log.warning("the end of task %d of job %s cannot be reported", task.rank, task.job)


def _words(code: int) -> str:
    """An exit code in words; empty for 0."""
    if not code:
        return ""
    return str(Exit(code, None) if code > 0 else Exit(None, -code))
