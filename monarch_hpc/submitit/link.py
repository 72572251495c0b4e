"""A client's connection to the service of an allocation, which it starts if there is none."""

from __future__ import annotations

import atexit
import base64
import contextlib
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from monarch_hpc.agent.output.retention import printed_runs
from monarch_hpc.allocation.programs import read_exit
from monarch_hpc.allocation.settings import name_of, read_config
from monarch_hpc.attach.program_client import ProgramClient
from monarch_hpc.attach.program_order import plan_order
from monarch_hpc.config.program import own_environment
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.submitit.requests import ServiceAnswer, ServiceRequest, decode_answer
from monarch_hpc.wire.control.programs import RUN_EXISTS, ProgramOutput

__all__ = ["ServiceEnded", "ServiceLink", "leave_services", "link_to", "open_service"]

_RUNS = "5b000000"
"""Begin of the runs of services, in hexadecimal; four digits count them, so that two clients that start one start the
same. A program's random run begins like this in one of 4 billion."""

_TRIES = 5
_BUSY_S = 0.02
"""Time until input is offered again that the agent could not take, because another client's was still to be read."""

_TITLE = "jobs of submitit"


class ServiceEnded(Exception):
    """The service has ended before it answered."""


class ServiceLink:
    """A connection to the service that is run *run* of the allocation in *directory*.

    Raises:
        MonarchError: the head cannot be reached.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self.directory = directory
        self.run = run
        self._changes = threading.Condition()
        self._writing = threading.Lock()
        self._answers: dict[str, ServiceAnswer] = {}
        self._awaited: set[str] = set()
        self._line = b""
        self._client = ProgramClient(directory, run, self._on_output, self._wake)

    def start(self, timeout_s: float) -> None:
        """Start the service, unless another client has, and follow its answers.

        Raises:
            AllocationError: the head refuses it, or does not answer in time.
        """
        client, deadline = self._client, Deadline(timeout_s)
        directory = self.directory
        argv = [read_config(directory).agent.python or sys.executable, "-P", "-m", "monarch_hpc.submitit.service"]
        order = plan_order(self.run, argv, own_environment(), None, reads=True)
        # The jobs have folders of their own; this one is on each host that may start the service.
        client.start(replace(order, cwd=str(directory), title=_TITLE))
        with self._changes:
            self._changes.wait_for(
                lambda: client.started or client.end or client.refusal or client.lost, deadline.left_s()
            )
        running = client.started or client.end is not None
        if client.refusal == RUN_EXISTS.format(run=self.run):
            client.refusal, running = "", True
        if not running:
            raise AllocationError(name_of(directory), client.refusal or client.lost or "its head does not answer")
        self.follow()

    def follow(self) -> None:
        """Read the answers from here on."""
        self._client.read(-1)

    @property
    def ended(self) -> bool:
        """Whether the service has ended."""
        return self._client.end is not None or bool(self._client.refusal)

    @property
    def lost(self) -> str:
        """Why the head is out of reach; empty while it is connected."""
        return self._client.lost

    def ask(self, request: ServiceRequest, timeout_s: float) -> str:
        """Send a request; return why it was refused, empty if it was carried out.

        Raises:
            ServiceEnded: the service has ended, or the head is lost, before the answer.
            TimeoutError: there was no answer in time.
        """
        deadline = Deadline(timeout_s)
        self._awaited.add(request.ticket)
        try:
            self._write(request.encode().encode() + b"\n", deadline)
            with self._changes:
                answered = self._changes.wait_for(
                    lambda: request.ticket in self._answers or self.ended or self.lost, deadline.left_s()
                )
            answer = self._answers.pop(request.ticket, None)
        finally:
            self._awaited.discard(request.ticket)
        if answer is not None:
            return answer.problem
        if not answered:
            raise TimeoutError(f"the service of submitit's jobs on {name_of(self.directory)} has not answered in time")
        raise ServiceEnded

    def close(self) -> None:
        """Leave; the service goes on."""
        self._client.close()

    def _write(self, data: bytes, deadline: Deadline) -> None:
        client = self._client
        with self._writing:
            while not (self.ended or self.lost):
                client.input_closed = False
                client.write(data, end=False)
                if client.wait_for_input():
                    return
                if deadline.passed():
                    raise TimeoutError("the service of submitit's jobs reads no requests")
                time.sleep(_BUSY_S)
        raise ServiceEnded

    def _on_output(self, output: ProgramOutput) -> None:
        for part in output.parts:
            if part.stream == "out":
                *lines, self._line = (self._line + base64.b64decode(part.data)).split(b"\n")
                for answer in filter(None, map(decode_answer, lines)):
                    if answer.ticket in self._awaited:
                        self._answers[answer.ticket] = answer
        self._wake()
        self._client.read(output.next)

    def _wake(self) -> None:
        with self._changes:
            self._changes.notify_all()


_links: dict[Path, ServiceLink] = {}
_opening = threading.Lock()


def open_service(directory: Path) -> ServiceLink:
    """Return the connection of this process to the allocation's service, which is started if there is none.

    Raises:
        AllocationError: the allocation has ended, or is not ready, or refuses.
        MonarchError: its head cannot be reached.
    """
    with _opening:
        for _ in range(_TRIES):
            link = _links.get(directory)
            if link is None:
                link = ServiceLink(directory, _next_run(directory))
                try:
                    link.start(read_config(directory).transport.relay_s)
                except BaseException:
                    link.close()
                    raise
                _links[directory] = link
            if not (link.ended or link.lost):
                return link
            link.close()
            _links.pop(directory, None)
    raise AllocationError(name_of(directory), "its service of submitit's jobs ends again and again: 'monarch-hpc logs'")


def link_to(directory: Path, run: str) -> ServiceLink | None:
    """Return a connection to a started service, whose loss reports the service's end; None if it has ended.

    Raises:
        MonarchError: its head cannot be reached.
    """
    with contextlib.suppress(ConfigError):
        if read_exit(directory, run) is not None:
            return None
    with _opening:
        link = _links.get(directory)
        if link is None or link.lost or link.run != run:
            fresh = ServiceLink(directory, run)
            fresh.follow()
            if link is not None:
                link.close()
            link = _links[directory] = fresh
    return link


@atexit.register
def leave_services() -> None:
    """Close all connections of this process; the services go on."""
    with _opening:
        while _links:
            _links.popitem()[1].close()


def _next_run(directory: Path) -> str:
    """The run of the service that goes on, or of the next one."""
    numbers = [int(run[len(_RUNS) :], 16) for run in printed_runs(directory) if _is_service(run)]
    number = max(numbers, default=0)
    over = not numbers
    with contextlib.suppress(ConfigError):
        over = over or read_exit(directory, _run_of(number)) is not None
    return _run_of(number + 1 if over else number)


def _run_of(number: int) -> str:
    return f"{_RUNS}{number:04x}"


def _is_service(run: str) -> bool:
    return re.fullmatch(rf"{_RUNS}[0-9a-f]{{4}}", run) is not None
