"""The trial of a host's RDMA network, in a child process: UCX ends a process whose network does not deliver.

A RoCE device has several addresses (GIDs), of which UCX may choose one that this network does not route; then both
sides of the first connection abort some seconds later. So a child of the first process of each host that needs RDMA
connects two workers to each other, through the device, and moves some bytes. If it fails, the host uses its other
fabrics.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.config.tls import only_rdma
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.transport.ucx.front import place
from monarch_hpc.transport.ucx.library import load_library

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx._ucx import Operation

__all__ = ["find_rdma_fault"]

TRIAL_S = 60.0
"""Limit of a trial, which takes half a second on a host that is not busy, and half a minute on a busy emulated one.
Channels use their sockets meanwhile."""

_SILENT = {"UCX_UD_TIMEOUT": "10s"}
"""Time after which UCX gives up a peer that does not answer, and ends the process: what the trial is to find out.

What the user has set stays."""

_BYTES = 1 << 18
"""Moved by a get and by a put: more than fits into a message, so that queue pairs and keys are used."""

_PASSED = "passed"

_log = Logger(__name__)


def find_rdma_fault(library: str, variables: Mapping[str, str], environ: Mapping[str, str], folder: str) -> str:
    """Return why this host cannot use RDMA; empty if it can.

    Args:
        library: libucp, as `library.load_library` takes it.
        variables: UCX's variables of this process.
        environ: environment of this process.
        folder: of this host and user, where the first process leaves the outcome for others; empty if there is none.
    """
    variables = {**variables, "UCX_TLS": only_rdma(variables["UCX_TLS"])}
    if not folder:
        return _try(library, variables, environ)
    users = {name: value for name, value in environ.items() if name.startswith("UCX_")}
    digest = hashlib.sha256(json.dumps([library, variables, users], sort_keys=True).encode()).hexdigest()
    file = Path(folder) / f"rdma-{digest[:16]}"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return _try(library, variables, environ)
    with os.fdopen(descriptor, "r+") as outcome:
        fcntl.flock(outcome, fcntl.LOCK_EX)  # the others wait for the first
        found = outcome.read()
        if not found:
            found = _try(library, variables, environ) or _PASSED
            outcome.write(found)
        return "" if found == _PASSED else found


def _try(library: str, variables: Mapping[str, str], environ: Mapping[str, str]) -> str:
    silent = {name: environ.get(name, value) for name, value in _SILENT.items()}
    environment = {**environ, **variables, **silent, "UCX_LOG_LEVEL": "error", "UCX_LOG_FILE": "stderr"}
    try:
        trial = launch(
            [sys.executable, "-P", "-m", __name__, library],
            environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            new_session=True,  # Ctrl-C is for the program
        )
    except OSError as error:
        return _fault(f"its process did not start: {error}", b"")
    with trial:
        try:
            _, said = trial.communicate(timeout=TRIAL_S)
        except subprocess.TimeoutExpired as expired:
            trial.kill()
            return _fault(f"it took longer than {TRIAL_S:g} s", expired.stderr or b"")
    code = trial.returncode
    return "" if code == 0 else _fault(str(Exit(None, -code) if code < 0 else Exit(code, None)), said)


def _fault(what: str, said: bytes) -> str:
    """The reason, with what UCX said first."""
    # "[time] [host:pid:0]  ud_ep.c:276  Fatal: UD endpoint ... unhandled timeout error"
    lines = [re.sub(r"^\[.*?\]\s*\[.*?\]\s*", "", line).strip() for line in said.decode(errors="replace").splitlines()]
    told = next((line for line in lines if re.search(r"error|fatal", line, re.IGNORECASE)), lines[-1] if lines else "")
    advice = "; if the device is RoCE, UCX_IB_GID_INDEX may name an address that its network routes"
    fault = f"UCX's trial of RDMA failed, {what}{f' ({told[:200]})' if told else ''}{advice}"
    _log.warning("this host does not use RDMA: %s", fault)
    return fault


class _Side:
    """A worker of the trial, with its lane to the other one."""

    def __init__(self) -> None:
        from monarch_hpc.transport.ucx import _ucx

        self.events = _ucx
        self.worker = _ucx.Worker(_BYTES, place)
        self.lane = self.worker.open(self)
        self.epoll = select.epoll()
        self.epoll.register(self.worker.fd, select.EPOLLIN)
        self.received = 0

    def connect(self, other: _Side) -> None:
        self.lane.connect(other.worker.address, other.lane.token)

    def step(self) -> None:
        self.worker.poll(self.epoll.fileno(), 0.0, 0.001)
        for event in self.worker.take():
            if event[0] == self.events.SMALL:
                self.received += len(event[3] or b"")
            elif event[0] == self.events.ERROR:
                raise ConnectionError(self.events.status_text(event[2]))


def main(library: str) -> None:
    """Connect two workers of this process; the parent learns the outcome from the exit code."""
    found = load_library(library)
    if not found.path:
        raise SystemExit(found.reason)
    near, far = _Side(), _Side()
    near.connect(far)
    far.connect(near)
    deadline_s = time.monotonic() + TRIAL_S

    def until(done: Callable[[], bool]) -> None:
        while not done():
            if time.monotonic() > deadline_s:
                raise TimeoutError("no answer")
            near.step()
            far.step()

    def end(operation: Operation, what: str) -> None:
        until(lambda: operation.status != 1)
        if operation.status != 0:
            raise ConnectionError(f"a {what} ended with {near.events.status_text(operation.status)}")

    for side in (near, far):
        side.lane.send(b"head", b"first message", False)
    until(lambda: near.received > 0 and far.received > 0)
    new_span = near.events.Span
    lent, own = bytearray(os.urandom(_BYTES)), bytearray(_BYTES)
    span = new_span(lent, True)
    key = near.lane.unpack(far.worker.register(span, True).key)
    end(near.lane.get(new_span(own, True), span.address, key), "get")
    if own != lent:
        raise ConnectionError("a get read other bytes")
    own[:] = os.urandom(_BYTES)
    put = near.lane.put(new_span(own, False), span.address, key)
    end(near.lane.flush(), "flush")
    end(put, "put")
    if own != lent:
        raise ConnectionError("a put wrote other bytes")
    os._exit(0)  # how UCX ends does not matter here


if __name__ == "__main__":
    main(*sys.argv[1:])
