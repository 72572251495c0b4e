"""An allocation of workers that were started by hand, for as long as one program runs."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch_hpc.allocation import files as bootstrap
from monarch_hpc.allocation.settings import write_config
from monarch_hpc.attach.workers.address import WorkerAddress, dialling_addresses, parse_worker_address
from monarch_hpc.attach.workers.key import Secret, read_secret
from monarch_hpc.attach.workers.private_folder import open_attended
from monarch_hpc.attach.workers.protocol import WORKERS, read_word, word
from monarch_hpc.attach.workers.worker import rendezvous_folder
from monarch_hpc.config import Config, as_document
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import (
    AllocationError,
    AuthenticationError,
    ConfigError,
    FrameError,
    PeerLost,
    TransportError,
)
from monarch_hpc.core.files import read_json, write_json, write_private
from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.address import parse_address
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame

__all__ = ["AttachedWorkers", "open_workers"]

_AGAIN_S = 0.2
"""Before a worker that is not there yet, or still has another program, is asked again."""
_END_S = 15.0
"""Beyond the procs' grace, how long workers may take to say that their agents have ended."""


_log = Logger(__name__)


@dataclass(slots=True)
class _WorkerState:
    """One of the workers, and how far it has come."""

    address: WorkerAddress
    rank: int
    addresses: list[str] = field(default_factory=list)
    channel: FrameChannel | None = None
    problem: str = "no answer"
    refusal: AuthenticationError | None = None  # the last that answered in its place does not hold the key
    engaged: bool = False
    over: bool = False  # it said that it has ended, or is gone


@dataclass(frozen=True, slots=True)
class AttachedWorkers:
    """An allocation of workers.

    Attributes:
        directory: of the allocation, as programs attach to it.
        dismiss: ends the workers themselves when the allocation ends.
    """

    directory: Path
    dismiss: Callable[[], None]


class _Attaching:
    """Engages workers; the listener of their channels. State changes on the driver alone."""

    def __init__(self, workers: Sequence[WorkerAddress], key: bytes, config: Config, timeout_s: float) -> None:
        self._posts = [_WorkerState(address, rank) for rank, address in enumerate(workers)]
        self._config = config
        self._deadline = Deadline(timeout_s)
        self._allocation = new_allocation_id()
        self._key = os.urandom(bootstrap.KEY_BYTES)
        self._failure: AllocationError | ConfigError | TransportError | None = None
        self._ready: Mapping[str, Any] | None = None
        self._leaving = False
        self.for_good = False
        self._folder = rendezvous_folder(config)
        self._engine = Engine()
        identity = Identity(WORKERS, Role.TOOL, platform.node(), new_incarnation())
        self._node = Node(self._engine, identity, key, self, config.transport)

    # ---- from the program's thread ----

    def engage(self, directory: Path) -> None:
        """Make the allocation, and leave in *directory* what it takes to attach to it."""
        for post in self._posts:
            if not post.address.dial.path:
                post.addresses = dialling_addresses(post.address.dial)
        self._engine.start()
        for post in self._posts:
            self._engine.call_soon(functools.partial(self._look_for, post))
        self._engine.wait(lambda: self._failure is not None or self._ready is not None, self._deadline.left_s())
        if self._failure is not None:
            raise self._failure
        if self._ready is None:
            for post in self._posts:
                if post.refusal is not None:
                    raise _noted(post.refusal, post)
            raise AllocationError("workers", self._who_is_missing())
        missing = self._ready.get("missing")
        if missing:
            raise AllocationError("workers", f"agents did not report to the first one: {', '.join(missing)}")
        write_private(directory / "key", self._key)
        write_config(directory, self._config)
        write_json(directory / "ready.json", dict(self._ready))

    def _who_is_missing(self) -> str:
        late = [post for post in self._posts if not post.engaged] or self._posts[:1]
        first = late[0]
        others = (
            f" (and {len(late) - 1} more: {', '.join(post.address.text for post in late[1:9])})" if late[1:] else ""
        )
        return (
            f"worker {first.address.text} is not there after {self._deadline.timeout_s:.0f} s: {first.problem}{others};"
            " start it on its host with run_worker_loop_forever(address=...), or wait longer (config key"
            " 'agent.attach_s')"
        )

    @property
    def is_own(self) -> bool:
        """Whether this process has made it, and is no child of that one."""
        return not self._engine.forked_from

    def leave(self) -> None:
        """Give the workers back, and wait until their agents are gone."""

        def begin() -> None:
            self._leaving = True
            for post in self._posts:
                if post.channel is not None and not post.over:
                    self._tell(post, word("leave", for_good=self.for_good))

        self._engine.call_soon(begin)
        gone = Deadline(self._config.procs.stop_s + _END_S)
        self._engine.wait(lambda: all(post.over or post.channel is None for post in self._posts), gone.left_s())
        self._node.close("the program ended")
        self._engine.close()

    # ---- on the driver ----

    def _look_for(self, post: _WorkerState) -> None:
        if self._leaving or self._failure is not None or self._deadline.passed():
            return
        if post.address.dial.path:
            path = post.address.dial.file(self._folder)
            try:
                found = read_json(path)
                post.addresses = [str(each) for each in found["addresses"]] if isinstance(found, dict) else []
            except FileNotFoundError:
                self._not_yet(post, f"there is no file {path}, which a worker makes")
                return
            except (ConfigError, KeyError, TypeError) as error:
                self._not_yet(post, str(error))
                return
        self._node.dial(post.addresses, 0, functools.partial(self._dialled, post))

    def _not_yet(self, post: _WorkerState, problem: str, refusal: AuthenticationError | None = None) -> None:
        if refusal is not None and post.refusal is None:
            _log.warning(
                "worker %s: %s; waiting %.0f s for one with the same private_key",
                *(post.address.text, problem, self._deadline.left_s()),
            )
        post.problem, post.refusal = problem, refusal
        self._engine.call_later(_AGAIN_S, functools.partial(self._look_for, post))

    def _dialled(self, post: _WorkerState, result: FrameChannel | TransportError) -> None:
        if isinstance(result, PeerLost):
            self._not_yet(post, result.reason)
        elif isinstance(result, AuthenticationError):
            # Anybody may listen there before the worker does, and must not be able to end the program.
            self._not_yet(post, str(result), result)
        elif isinstance(result, TransportError):
            self._fail(_noted(result, post))  # it holds the key, and will say the same again
        else:
            post.channel, post.refusal = result, None
            self._ask(post)

    def _ask(self, post: _WorkerState) -> None:
        if self._leaving or post.over:
            return
        self._tell(
            post,
            word(
                "engage",
                program=" ".join(sys.argv) or "python",
                allocation=self._allocation,
                rank=post.rank,
                num_hosts=len(self._posts),
                key=self._key.hex(),
                config=as_document(self._config),
                local=all(_is_loopback(each) for each in self._posts),
            ),
        )
        post.engaged = True

    def _tell(self, post: _WorkerState, frame: Frame) -> None:
        assert post.channel is not None
        with contextlib.suppress(TransportError):  # `on_lost` follows
            post.channel.send(frame)

    def _fail(self, error: AllocationError | TransportError) -> None:
        if self._failure is None and self._ready is None:
            self._failure = error
            self._engine.wake_waiters()

    def on_channel(self, channel: FrameChannel) -> None:
        """Nobody dials a program."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """A worker answers."""
        post = next((post for post in self._posts if post.channel is channel), None)
        if post is None:
            return
        try:
            kind, fields = read_word(frame)
            self._hear(post, kind, fields)
        except (FrameError, KeyError, TypeError) as error:
            self._fail(FrameError(f"worker {post.address.text}: {error}"))

    def _hear(self, post: _WorkerState, kind: str, fields: Mapping[str, Any]) -> None:
        match kind:
            case "busy":
                post.engaged = False
                post.problem = f"it works for {fields['by']}"
                self._engine.call_later(_AGAIN_S, functools.partial(self._ask, post))
            case "head":
                for other in self._posts[1:]:
                    other_head = word("head", addresses=fields["addresses"])
                    self._when_engaged(other, other_head)
            case "ready":
                self._ready = dict(fields["document"])
                self._engine.wake_waiters()
            case "failed":
                lines = "".join(f"\n    {line}" for line in fields["last_lines"])
                self._fail(
                    AllocationError(
                        "workers", f"worker {post.address.text}: {fields['cause']}:{lines or ' it wrote nothing'}"
                    )
                )
            case "left":
                post.over = True
                self._engine.wake_waiters()
            case _:
                raise FrameError(f"unexpected word {kind!r}")

    def _when_engaged(self, post: _WorkerState, frame: Frame) -> None:
        """Tell a worker once it has been found; it may be the last to start."""
        if self._leaving or self._deadline.passed():
            return
        if post.engaged:
            self._tell(post, frame)
        else:
            self._engine.call_later(_AGAIN_S, functools.partial(self._when_engaged, post, frame))

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """A worker is gone; if it was one of the allocation, its head says what that means."""
        for post in self._posts:
            if post.channel is channel:
                post.over = True
                self._fail(AllocationError("workers", f"worker {post.address.text} is gone: {error}"))
        self._engine.wake_waiters()


@contextlib.contextmanager
def open_workers(
    workers: Sequence[str], secret: Secret, config: Config, timeout_s: float | None = None
) -> Iterator[AttachedWorkers]:
    """Make an allocation of waiting workers, in their order.

    It ends with the context, and so do the agents on the workers, which then wait for the next program.

    Args:
        workers: addresses, see `worker_address`.
        secret: see `secret`.
        timeout_s: how long to wait for all of them; None for config key `agent.attach_s`.

    Raises:
        ConfigError: an address or the key cannot be used.
        AllocationError: a worker is not there in time, is taken, or cannot start its agent.
        AuthenticationError: who listens in a worker's place still holds another key when the time is over.
        VersionMismatch: it runs another Python or package.
    """
    if not workers:
        raise AllocationError("workers", "attach to at least one worker")
    addresses = [parse_worker_address(worker) for worker in workers]
    places = [str(address.dial) for address in addresses]
    twice = [address.text for address in addresses if places.count(str(address.dial)) > 1]
    if twice:
        raise AllocationError("workers", f"worker {twice[0]} is named twice: a worker is one host")
    hire = _Attaching(addresses, read_secret(secret, config.paths.state), config, timeout_s or config.agent.attach_s)

    def dismiss() -> None:
        hire.for_good = True

    with open_attended() as directory:
        try:
            hire.engage(directory)
            yield AttachedWorkers(directory, dismiss)
        finally:
            if hire.is_own:  # what was forked meanwhile may leave the context, too
                hire.leave()


def _noted(error: TransportError, post: _WorkerState) -> TransportError:
    error.add_note(f"worker {post.address.text}: both sides need the same private_key and the same versions")
    return error


def _is_loopback(post: _WorkerState) -> bool:
    hosts = [parse_address(address)[0] for address in post.addresses]
    return bool(post.address.dial.path) or all(host.startswith("127.") or host == "::1" for host in hosts)
