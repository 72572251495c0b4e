"""An allocation of manually started workers, for the lifetime of one program."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from monarch_hpc.allocation import files as allocation_files
from monarch_hpc.allocation.document import Document
from monarch_hpc.allocation.ready import parse_ready, write_ready
from monarch_hpc.allocation.settings import write_config
from monarch_hpc.attach.workers.address import WorkerAddress, dialling_addresses, parse_worker_address
from monarch_hpc.attach.workers.key import Secret, read_secret
from monarch_hpc.attach.workers.private_folder import open_private_folder
from monarch_hpc.attach.workers.protocol import WORKERS, parse_message, render_message
from monarch_hpc.attach.workers.worker import rendezvous_folder
from monarch_hpc.config import Config, as_document
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import (
    AllocationError,
    AuthenticationError,
    ConfigError,
    FrameError,
    PeerLost,
    TransportError,
)
from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.files import read_json
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame

__all__ = ["AttachedWorkers", "open_workers"]

_RETRY_S = 0.2
"""Delay before a retry with a worker that is not there yet, or is busy."""
_END_S = 15.0
"""Beyond the procs' grace, how long workers may take to report that their agents have ended."""


_log = Logger(__name__)


@dataclass(slots=True)
class _WorkerState:
    """The state of one worker of the allocation."""

    address: WorkerAddress
    rank: int
    addresses: list[str] = field(default_factory=list)
    channel: FrameChannel | None = None
    problem: str = "no answer"
    refusal: AuthenticationError | None = None  # from the last process at its address, without the key
    engaged: bool = False
    over: bool = False  # its agent has ended, or the worker is lost


@dataclass(frozen=True, slots=True)
class AttachedWorkers:
    """An allocation of manually started workers.

    Attributes:
        directory: the allocation's directory, for `attach`.
        dismiss: gives hosts back, by rank: their agents end at once, and their workers exit. The first host, whose
            agent is the head, stays until the allocation ends.
    """

    directory: Path
    dismiss: Callable[[Collection[int]], None]


class _Attaching:
    """Attaches workers to an allocation; the listener of their channels. State is changed on the driver only."""

    def __init__(self, workers: Sequence[WorkerAddress], key: bytes, config: Config, timeout_s: float) -> None:
        self._workers = [_WorkerState(address, rank) for rank, address in enumerate(workers)]
        self._config = config
        self._deadline = Deadline(timeout_s)
        self._allocation = new_allocation_id()
        self._key = os.urandom(allocation_files.KEY_BYTES)
        self._failure: AllocationError | ConfigError | TransportError | None = None
        self._ready: Mapping[str, Any] | None = None
        self._leaving = False
        self._dismissed: set[int] = set()  # ranks of workers that are to exit
        self._folder = rendezvous_folder(config)
        self._engine = Engine()
        identity = Identity(WORKERS, Role.TOOL, os.uname().nodename, new_incarnation())
        self._node = Node(self._engine, identity, key, self, config.transport)

    # ---- from the program's thread ----

    def engage(self, directory: Path) -> None:
        """Make the allocation, and write to *directory* the files needed to attach to it."""
        for worker in self._workers:
            if not worker.address.dial.path:
                worker.addresses = dialling_addresses(worker.address.dial)
        self._engine.start()
        for worker in self._workers:
            self._engine.call_soon(functools.partial(self._find, worker))
        self._engine.wait(lambda: self._failure is not None or self._ready is not None, self._deadline.left_s())
        if self._failure is not None:
            raise self._failure
        if self._ready is None:
            for worker in self._workers:
                if worker.refusal is not None:
                    raise _with_note(worker.refusal, worker)
            raise AllocationError("workers", self._missing_text())
        ready = parse_ready(Document(self._ready, f"the report of worker {self._workers[0].address.text}"))
        if ready.missing:
            raise AllocationError("workers", f"agents did not report to the first one: {', '.join(ready.missing)}")
        allocation_files.write_key(directory, self._key)
        write_config(directory, self._config)
        write_ready(directory, ready)

    def _missing_text(self) -> str:
        late = [worker for worker in self._workers if not worker.engaged] or self._workers[:1]
        first = late[0]
        others = (
            f" (and {len(late) - 1} more: {', '.join(worker.address.text for worker in late[1:9])})" if late[1:] else ""
        )
        return (
            f"worker {first.address.text} is not there after {self._deadline.timeout_s:.0f} s: {first.problem}{others};"
            " start it on its host with run_worker_loop_forever(address=...), or wait longer (config key"
            " 'agent.attach_s')"
        )

    @property
    def is_own(self) -> bool:
        """Whether this process made the allocation, and is not a forked child."""
        return not self._engine.forked_from

    def dismiss(self, ranks: Collection[int]) -> None:
        """Have workers exit: at once while others go on, else when they are released; see `AttachedWorkers.dismiss`."""
        self._dismissed.update(ranks)
        if len(self._dismissed) < len(self._workers):
            self._release([worker for worker in self._workers[1:] if worker.rank in self._dismissed])

    def leave(self) -> None:
        """Release the workers, and wait until their agents have ended."""
        self._leaving = True
        self._release(self._workers)
        self._node.close("the program ended")
        self._engine.close()

    def _release(self, workers: Sequence[_WorkerState]) -> None:
        def begin() -> None:
            for worker in workers:
                if worker.channel is not None and not worker.over:
                    self._send(worker, render_message("leave", for_good=worker.rank in self._dismissed))

        self._engine.call_soon(begin)
        deadline = Deadline(self._config.procs.stop_s + _END_S)
        self._engine.wait(lambda: all(worker.over or worker.channel is None for worker in workers), deadline.left_s())

    # ---- on the driver ----

    def _find(self, worker: _WorkerState) -> None:
        if self._leaving or self._failure is not None or self._deadline.passed():
            return
        if worker.address.dial.path:
            path = worker.address.dial.file(self._folder)
            try:
                document = read_json(path)
                worker.addresses = [str(each) for each in document["addresses"]] if isinstance(document, dict) else []
            except FileNotFoundError:
                self._retry_later(worker, f"there is no file {path}, which a worker makes")
                return
            except (ConfigError, KeyError, TypeError) as error:
                self._retry_later(worker, str(error))
                return
        self._node.dial(worker.addresses, 0, functools.partial(self._dialled, worker))

    def _retry_later(self, worker: _WorkerState, problem: str, refusal: AuthenticationError | None = None) -> None:
        if refusal is not None and worker.refusal is None:
            _log.warning(
                "worker %s: %s; waiting %.0f s for one with the same private_key",
                *(worker.address.text, problem, self._deadline.left_s()),
            )
        worker.problem, worker.refusal = problem, refusal
        self._engine.call_later(_RETRY_S, functools.partial(self._find, worker))

    def _dialled(self, worker: _WorkerState, result: FrameChannel | TransportError) -> None:
        if isinstance(result, PeerLost):
            self._retry_later(worker, result.reason)
        elif isinstance(result, AuthenticationError):
            # Any process may listen there before the worker does, and must not be able to fail the program.
            self._retry_later(worker, str(result), result)
        elif isinstance(result, TransportError):
            self._fail(_with_note(result, worker))  # the peer holds the key, so a retry would fail, too
        else:
            worker.channel, worker.refusal = result, None
            self._ask(worker)

    def _ask(self, worker: _WorkerState) -> None:
        if self._leaving or worker.over:
            return
        self._send(
            worker,
            render_message(
                "engage",
                program=" ".join(sys.argv) or "python",
                allocation=self._allocation,
                rank=worker.rank,
                num_hosts=len(self._workers),
                key=self._key.hex(),
                config=as_document(self._config),
                local=all(_is_loopback(each) for each in self._workers),
            ),
        )
        worker.engaged = True

    def _send(self, worker: _WorkerState, frame: Frame) -> None:
        assert worker.channel is not None
        with contextlib.suppress(TransportError):  # `on_lost` follows
            worker.channel.send(frame)

    def _fail(self, error: AllocationError | TransportError) -> None:
        if self._failure is None and self._ready is None:
            self._failure = error
            self._engine.wake_waiters()

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: programs do not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Handle a worker's message."""
        worker = next((worker for worker in self._workers if worker.channel is channel), None)
        if worker is None:
            return
        try:
            kind, fields = parse_message(frame)
            self._handle(worker, kind, fields)
        except (FrameError, KeyError, TypeError) as error:
            self._fail(FrameError(f"worker {worker.address.text}: {error}"))

    def _handle(self, worker: _WorkerState, kind: str, fields: Mapping[str, Any]) -> None:
        match kind:
            case "busy":
                worker.engaged = False
                worker.problem = f"it works for {fields['by']}"
                self._engine.call_later(_RETRY_S, functools.partial(self._ask, worker))
            case "head":
                for other in self._workers:
                    if other is not worker:
                        self._when_engaged(other, render_message("head", **fields))
            case "ready":
                self._ready = dict(fields["document"])
                self._engine.wake_waiters()
            case "failed":
                lines = "".join(f"\n    {line}" for line in fields["last_lines"])
                self._fail(
                    AllocationError(
                        "workers", f"worker {worker.address.text}: {fields['cause']}:{lines or ' it wrote nothing'}"
                    )
                )
            case "left":
                worker.over = True
                self._engine.wake_waiters()
            case _:
                raise FrameError(f"unexpected message {kind!r}")

    def _when_engaged(self, worker: _WorkerState, frame: Frame) -> None:
        """Send *frame* to a worker once it is attached; it may be the last to start."""
        if self._leaving or self._deadline.passed():
            return
        if worker.engaged:
            self._send(worker, frame)
        else:
            self._engine.call_later(_RETRY_S, functools.partial(self._when_engaged, worker, frame))

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle a lost worker: the attachment fails, unless it is complete; then the head reports the loss."""
        for worker in self._workers:
            if worker.channel is channel:
                worker.over = True
                self._fail(AllocationError("workers", f"worker {worker.address.text} is gone: {error}"))
        self._engine.wake_waiters()


@contextlib.contextmanager
def open_workers(
    workers: Sequence[str], secret: Secret, config: Config, timeout_s: float | None = None
) -> Iterator[AttachedWorkers]:
    """Make an allocation of waiting workers, in the order given.

    The allocation and the agents on the workers end with the context; the workers then wait for the next program.

    Args:
        workers: addresses, see `attach.workers.address`.
        secret: see `read_secret`.
        timeout_s: how long to wait for all workers; None for config key `agent.attach_s`.

    Raises:
        ConfigError: an address or the key cannot be used.
        AllocationError: a worker is not there in time, is busy, or cannot start its agent.
        AuthenticationError: at the timeout, the process at a worker's address does not hold the key.
        VersionMismatch: a worker runs another version of Python or monarch-hpc.
    """
    if not workers:
        raise AllocationError("workers", "attach to at least one worker")
    addresses = [parse_worker_address(worker) for worker in workers]
    places = [str(address.dial) for address in addresses]
    twice = [address.text for address in addresses if places.count(str(address.dial)) > 1]
    if twice:
        raise AllocationError("workers", f"worker {twice[0]} is named twice: a worker is one host")
    attaching = _Attaching(
        addresses, read_secret(secret, config.paths.state), config, timeout_s or config.agent.attach_s
    )

    with open_private_folder() as directory:
        try:
            attaching.engage(directory)
            yield AttachedWorkers(directory, attaching.dismiss)
        finally:
            if attaching.is_own:  # a forked child may leave the context, too
                attaching.leave()


def _with_note(error: TransportError, worker: _WorkerState) -> TransportError:
    error.add_note(f"worker {worker.address.text}: both sides need the same private_key and the same versions")
    return error


def _is_loopback(worker: _WorkerState) -> bool:
    hosts = [parse_address(address)[0] for address in worker.addresses]
    return bool(worker.address.dial.path) or all(host.startswith("127.") or host == "::1" for host in hosts)
