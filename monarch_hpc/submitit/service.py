"""The program that runs submitit's jobs on an allocation; run as ``python -m``, on the first host, by the first client.

Clients send it lines of JSON on its standard input, and read its answers, one line each, in its output. It outlives
them, and ends when it has had no job for a while. Users see the states of jobs in files beside the jobs' own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import monarch_hpc.actor as actors
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.ports.port import Channel, PortReceiver
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config.program import read_program
from monarch_hpc.core.clock import Deadline, monotonic
from monarch_hpc.core.errors import ConfigError, MonarchError
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.current import hosts
from monarch_hpc.submitit.requests import ServiceAnswer, ServiceRequest, decode_request
from monarch_hpc.submitit.scheduler import (
    Action,
    Changed,
    HostSpace,
    Scheduler,
    SignalTasks,
    StartTasks,
    TaskEnd,
)
from monarch_hpc.submitit.submission import StateChange, Submission, append_states, read_submission
from monarch_hpc.submitit.tasks.runner import Report, Runner
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, MESH_COOKIE, RUN_COOKIE

__all__ = ["main"]

_MARKS = (COOKIE, HOST_COOKIE, RUN_COOKIE, MESH_COOKIE)
_GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NAME = "submitit-"
_CHUNK = 1 << 16


class _Lost:
    """The runner of a host is gone."""

    def __init__(self, host: int) -> None:
        self.host = host


class _Back:
    """A host has another runner."""

    def __init__(self, host: int, runner: ActorMesh[Runner]) -> None:
        self.host = host
        self.runner = runner


class _Stop:
    """The allocation is about to end, or a user has ended this program."""


_Event = ServiceRequest | Report | _Lost | _Back | _Stop


class JobService:
    """The jobs of one allocation.

    Args:
        idle_s: how long it waits for a job before it ends.
        grace_s: time between SIGTERM and SIGKILL of cancelled jobs.
    """

    def __init__(self, idle_s: float, grace_s: float, gpu_variable: str) -> None:
        self._idle_s = idle_s
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._submissions: dict[str, Submission] = {}
        self._port, receiver = Channel.open()
        self._gpu_variable = gpu_variable
        self._hosts = hosts().flatten("rank")
        self._runners: dict[int, ActorMesh[Runner]] = {}
        space = {}
        actors.unhandled_fault_hook = self._on_fault
        for rank in range(len(self._hosts.entries)):
            space[rank] = self._space(rank)
            self._runners[rank], _ = self._spawn(rank)
        self._scheduler = Scheduler(space, grace_s)
        self._receiver = receiver
        Thread(partial(self._listen, receiver))
        Thread(self._read)

    def serve(self) -> None:
        """Carry out requests until there has been no job for a while, or the allocation ends."""
        patience = Deadline(self._idle_s)
        while True:
            next_s = self._scheduler.next_s
            if not self._scheduler.idle:
                patience = Deadline(self._idle_s)
                timeout_s = None if next_s is None else max(0.0, next_s - monotonic())
            else:
                timeout_s = patience.left_s()
            try:
                first: _Event | None = self._events.get(timeout=timeout_s)
            except queue.Empty:
                first = None
            if first is None and self._scheduler.idle and patience.passed():
                return
            events = [] if first is None else [first]
            with contextlib.suppress(queue.Empty):
                while True:
                    events.append(self._events.get_nowait())
            if any(isinstance(event, _Stop) for event in events):
                self._do(self._scheduler.abandon("its allocation ends, or the run of its service was ended"))
                return
            actions: list[Action] = []
            for event in events:
                actions += self._handle(event)
            self._do([*actions, *self._scheduler.tick(monotonic())])

    def stop(self) -> None:
        """End all jobs and this program soon; from a signal handler too."""
        self._events.put(_Stop())

    # ---- hosts ----

    def _space(self, rank: int) -> HostSpace:
        entry = self._hosts.entries[rank]
        # Embedded hosts have names that no resolver knows.
        local = all("//127." in address for address in entry.addresses)
        name = "localhost" if local else entry.name
        return HostSpace(entry.name, name, len(entry.cpus), list(entry.gpus), entry.memory_bytes)

    def _spawn(self, rank: int) -> tuple[ActorMesh[Runner], Future[Literal[True]]]:
        """Start the runner of a host; return it, and the future of its start."""
        one = self._hosts.slice(rank=slice(rank, rank + 1))
        procs = one.spawn_procs(name=f"{_NAME}{rank}", proc_bind="none")
        return procs.spawn(f"{_NAME}{rank}", Runner, self._port, self._gpu_variable, _MARKS), procs.initialized

    def _replace(self, rank: int) -> None:
        """Start another runner on a host that has lost its own, if the host is still there."""
        try:
            runner, started = self._spawn(rank)
            started.get()
        except (MonarchError, RuntimeError) as error:
            print(f"{self._hosts.entries[rank].name} has no jobs any more: {error}", file=sys.stderr, flush=True)
            return
        self._events.put(_Back(rank, runner))

    # ---- events ----

    def _read(self) -> None:
        # Not from sys.stdin: the interpreter would wait at its end for the lock that this thread holds.
        rest = b""
        while data := os.read(0, _CHUNK):
            *lines, rest = (rest + data).split(b"\n")
            for request in filter(None, map(decode_request, lines)):
                self._events.put(request)

    def _listen(self, receiver: PortReceiver[Report]) -> None:
        with contextlib.suppress(MonarchError, RuntimeError):  # the end of this program
            for report in receiver:
                self._events.put(report)
        self._events.put(_Stop())

    def _on_fault(self, failure: MeshFailure) -> None:
        print(f"a host is lost to submitit's jobs: {failure}", file=sys.stderr, flush=True)
        self._events.put(_Lost(int(failure.mesh_name.removeprefix(_NAME))))

    def _handle(self, event: _Event) -> list[Action]:
        now_s = monotonic()
        match event:
            case ServiceRequest(verb="submit"):
                return self._submit(event, now_s)
            case ServiceRequest():
                key = (event.submission, event.index)
                known = self._scheduler.knows(key)
                _answer(ServiceAnswer(event.ticket, "" if known else "it has ended"))
                if event.verb == "cancel":
                    return self._scheduler.cancel(key, now_s)
                return self._scheduler.signal(key, event.number)
            case _Lost(host=host):
                self._runners.pop(host, None)
                Thread(partial(self._replace, host))
                return self._scheduler.host_lost(host, now_s)
            case _Back(host=host, runner=runner):
                self._runners[host] = runner
                return self._scheduler.host_back(host, self._space(host), now_s)
            case (_, TaskEnd() as end):
                return self._scheduler.task_ended(event[0], end, now_s)
        return []

    def _submit(self, request: ServiceRequest, now_s: float) -> list[Action]:
        if request.submission in self._submissions:  # the client has not got the answer, and asks again
            _answer(ServiceAnswer(request.ticket, ""))
            return []
        try:
            submission = read_submission(Path(request.path))
            problem = self._scheduler.misfit(submission)
            if not problem:
                append_states(submission, [])
        except (OSError, ConfigError) as error:
            problem = f"{error} (on the allocation's first host)"
        _answer(ServiceAnswer(request.ticket, problem))
        if problem:
            return []
        self._submissions[submission.id] = submission
        return self._scheduler.submit(submission, now_s)

    # ---- actions ----

    def _do(self, actions: Iterable[Action]) -> None:
        changes: dict[str, list[StateChange]] = defaultdict(list)
        for action in actions:
            match action:
                case Changed():
                    changes[action.job[0]].append(action.change)
                case StartTasks():
                    runner = self._runners.get(action.host)
                    if runner is not None:
                        runner.start.broadcast(self._submissions[action.job[0]], action)
                case SignalTasks():
                    runner = self._runners.get(action.host)
                    if runner is not None:
                        runner.signal.broadcast(action)
        for submission, lines in changes.items():
            try:
                append_states(self._submissions[submission], lines)
            except OSError as error:
                print(f"states of job {submission} cannot be written: {error}", file=sys.stderr, flush=True)


def _answer(answer: ServiceAnswer) -> None:
    with contextlib.suppress(OSError):
        print(answer.encode(), flush=True)


def main() -> int:
    """Serve the allocation that this program was started on."""
    directory = read_program().directory
    assert directory is not None, "a client starts it on an allocation"
    config = read_config(directory)
    variable = config.procs.gpu_variable
    try:
        service = JobService(
            config.submitit.idle_s, config.procs.stop_s, _GPU_VARIABLE if variable == "auto" else variable
        )
    except MonarchError as error:
        print(f"submitit's jobs cannot be served: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: service.stop())
    service.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
