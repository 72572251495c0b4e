"""A manually started worker: it serves programs one after the other, as one of their hosts.

The worker is small and runs no code of programs itself. For each program it starts an agent, in an allocation that
the program makes and whose key arrives over the sealed channel; the agent and its procs end with the program.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monarch_hpc.agent.children.sweep import cookies, sweep
from monarch_hpc.agent.resources.shm_folder import remove_segments
from monarch_hpc.allocation.heads import HeadPlace, read_head, write_head
from monarch_hpc.allocation.ready import read_ready, render_ready
from monarch_hpc.allocation.settings import write_sent_config
from monarch_hpc.attach.workers.address import WorkerAddress, listening_addresses, parse_worker_address
from monarch_hpc.attach.workers.key import Secret, read_secret
from monarch_hpc.attach.workers.protocol import WORKERS, parse_message, render_message
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import ConfigError, FrameError, PeerLost, TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.gpus import parse_device_gpus, parse_gpus
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.storage.files import open_output, private_dir, write_json
from monarch_hpc.core.storage.scratch import make_scratch
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame

__all__ = ["Worker", "rendezvous_folder"]

_START_POLL_S = 0.02
"""Interval between two polls of a starting agent: too short for a person to notice."""
_RUN_POLL_S = 0.5
"""Interval between two polls of a running agent, whose end the head reports to the program, too."""
_SWEEP_S = 5.0
_NUM_LAST_LINES = 20

_log = Logger(__name__)


def rendezvous_folder(config: Config) -> Path:
    """Return the folder in which workers with ``ipc://name`` publish their listening addresses."""
    return private_dir(config.paths.state / "workers")


class Worker:
    """Serves programs at one address.

    Args:
        address: see `attach.workers.address`.
        secret: see `read_secret`.

    Raises:
        ConfigError: the address or the key cannot be used.
        PeerLost: the address is in use.
    """

    def __init__(self, address: str, secret: Secret, config: Config) -> None:
        self._address = parse_worker_address(address)
        self._config = config
        self._events: queue.SimpleQueue[tuple[FrameChannel, Frame | None]] = queue.SimpleQueue()
        self._running: _RunningAgent | None = None
        self._over = False
        key = read_secret(secret, config.paths.state)
        identity = Identity(WORKERS, Role.AGENT, os.uname().nodename, new_incarnation())
        self._engine = Engine()
        self._node = Node(self._engine, identity, key, self, config.transport)
        self._file: Path | None = None
        self.addresses = self._listen(self._address)
        """Listening addresses, each ``tcp://address:port``."""

    def _listen(self, address: WorkerAddress) -> list[str]:
        endpoint = address.bind
        if endpoint.path:
            self._file = endpoint.file(rendezvous_folder(self._config))
        if endpoint.descriptor is not None:
            return [self._node.listen_on(_inherited(address, endpoint.descriptor))]
        found: list[str] = []
        refused: PeerLost | None = None
        for host in listening_addresses(endpoint):
            try:
                found += self._node.listen([host], endpoint.port)
            except PeerLost as error:  # e.g. an IPv6 address of the name, on a machine without IPv6
                refused = error
        if not found:
            assert refused is not None
            raise PeerLost(address.text, f"a worker cannot listen there: {refused.reason}") from refused
        return found

    # ---- on the engine's driver: events are only queued ----

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: a peer has proved the key, and its first message follows."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Queue a message."""
        self._events.put((channel, frame))

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Queue the end of a channel."""
        self._events.put((channel, None))

    # ---- on the worker's own thread ----

    def serve(self, *, announce: Callable[[str], None] = lambda _text: None) -> None:
        """Serve programs, one at a time, until one of them dismisses the worker.

        Args:
            announce: called once with a text that names the listening addresses.
        """
        self._engine.start()
        try:
            if self._file is not None:
                write_json(self._file, {"schema": 1, "addresses": self.addresses, "pid": os.getpid()})
            announce(f"worker waits at {self._address.bind} ({', '.join(self.addresses)})")
            while not self._over:
                self._serve_one()
        finally:
            self._end_running()
            if self._file is not None:
                self._file.unlink(missing_ok=True)
            self._node.close("the worker ends")
            self._engine.close()

    def _serve_one(self) -> None:
        running = self._running
        try:
            channel, frame = self._events.get(timeout=None if running is None else running.poll())
        except queue.Empty:
            return
        if frame is None:
            if running is not None and running.channel is channel:
                _log.warning("lost the program on %s: ending its agent and procs", channel.peer.host)
                self._end_running()
            return
        try:
            self._handle(channel, *parse_message(frame))
        except (FrameError, KeyError, TypeError, ValueError) as error:
            channel.close(f"not a message of the worker protocol: {error}")

    def _handle(self, channel: FrameChannel, kind: str, fields: Mapping[str, Any]) -> None:
        running = self._running
        mine = running is not None and running.channel is channel
        if kind == "engage" and running is None:
            self._running = _RunningAgent(channel, fields, self._config)
        elif kind == "engage" and running is not None and not mine:
            _send(channel, render_message("busy", by=f"{running.program} on {running.channel.peer.host}"))
        elif kind == "head" and running is not None and mine:
            addresses = [str(address) for address in fields["addresses"]]
            write_head(running.directory, HeadPlace(int(fields["term"]), int(fields["rank"]), addresses))
        elif kind == "leave" and (mine or running is None):
            self._end_running()
            self._over = bool(fields.get("for_good"))
            _send(channel, render_message("left"))
        else:
            raise FrameError(f"{kind!r} is not expected in this state")

    def _end_running(self) -> None:
        if self._running is not None:
            self._running.end()  # repeated if SIGTERM interrupted it
            self._running = None


def _inherited(address: WorkerAddress, descriptor: int) -> socket.socket:
    """The bound socket that this process inherited.

    Raises:
        ConfigError: the descriptor is not a TCP socket.
    """
    try:
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(
            "", "", f"worker address {address.text!r}", f"descriptor {descriptor}: {error.strerror}"
        ) from error
    if found.type is not socket.SOCK_STREAM or found.family not in (socket.AF_INET, socket.AF_INET6):
        found.detach()
        raise ConfigError("", "", f"worker address {address.text!r}", f"descriptor {descriptor} is not a TCP socket")
    return found


class _RunningAgent:
    """The agent that a worker runs for one program."""

    def __init__(self, channel: FrameChannel, fields: Mapping[str, Any], config: Config) -> None:
        self.channel = channel
        self.program = str(fields["program"])
        self.directory, self._held = make_scratch(Path(tempfile.gettempdir()), "worker-")
        self._allocation = str(fields["allocation"])
        self._rank = int(fields["rank"])
        self._end_s = config.procs.stop_s + config.agent.grace_s + _SWEEP_S
        self._sent_term = 0
        self._sent_ready = self._sent_failed = False
        write_sent_config(self.directory, fields["config"])
        argv = [
            *(sys.executable, "-P", "-m", "monarch_hpc.agent", "--lifeline", "--held", str(self._held)),
            *("--directory", str(self.directory), "--allocation", self._allocation),
            *("--rank", str(self._rank), "--num-hosts", str(int(fields["num_hosts"]))),
            *(("--local",) if fields["local"] else ()),
        ]
        err = open_output(self.directory / "agent.err")
        try:
            self._process = launch(
                argv,
                _environment(),
                stdin=subprocess.PIPE,
                stdout=err,
                stderr=err,
                pass_fds=[self._held],
                new_session=True,
            )
        finally:
            os.close(err)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; `poll` reports why
            self._process.stdin.write(bytes.fromhex(fields["key"]))
            self._process.stdin.flush()

    def poll(self) -> float:
        """Report changes of the agent's state to the program; return the seconds until the next poll."""
        head = read_head(self.directory)
        if head is not None and head.rank == self._rank and head.term > self._sent_term:
            self._sent_term = head.term
            _send(self.channel, render_message("head", **asdict(head)))
        if not self._sent_ready and (ready := read_ready(self.directory)) is not None:
            self._sent_ready = True
            _send(self.channel, render_message("ready", document=render_ready(ready)))
        code = self._process.poll()
        if code is not None and not self._sent_failed:
            self._sent_failed = True
            how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            _send(
                self.channel, render_message("failed", cause=f"its agent ended ({how})", last_lines=self._last_lines())
            )
        settled = self._sent_failed or self._sent_ready or (self._rank > 0)
        return _RUN_POLL_S if settled else _START_POLL_S

    def end(self) -> None:
        """End the agent and everything that it started."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(Deadline(self._end_s).left_s())
        except subprocess.TimeoutExpired:
            _log.warning("the agent did not end within %.0f s: it is killed", self._end_s)
            self._process.kill()
            self._process.wait()
        sweep(cookies(self._allocation, self._rank), _SWEEP_S)
        remove_segments(self._allocation, self._rank)
        shutil.rmtree(self.directory, ignore_errors=True)
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)

    def _last_lines(self) -> list[str]:
        return (self.directory / "agent.err").read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:]


def _send(channel: FrameChannel, frame: Frame) -> None:
    with contextlib.suppress(TransportError):  # the channel is closed; `on_lost` follows
        channel.send(frame)


def _environment() -> dict[str, str]:
    """The agent's environment: the worker's own, plus the machine's GPUs if none were granted."""
    environment = dict(os.environ)
    if parse_gpus(environment) is None and (gpus := parse_device_gpus(os.listdir("/dev"))):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment
