"""Our fabrics: a transport node on each side, as in agents and procs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.ends.end import End, Missing, cpu_s, cpu_share, fresh, written
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.connect.relay import Relay
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.ucx.fabric import UcxFabric
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["OurEnd"]

_ALLOCATION = "00" * 16
_KEY = bytes(32)
_PATIENCE_S = 60.0
_UNREACHABLE = "192.0.2.1"
"""Reserved for documentation; the relay connects to loopback instead, so that no direct route wins."""

_ECHO, _TAKE, _COUNT = range(3)  # what the far end does with a frame
_BUFFER_BYTES = 4096  # larger payloads are buffers, as from the serializer

_TRANSPORTS = {"ucx-shm": "posix,cma,self", "ucx-tcp": "tcp,self"}


class _PipeRelay:
    """The relay, started on this machine instead of by `srun`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._relay: Relay | None = None

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        if self._relay is None:
            argv = [sys.executable, "-m", "monarch_hpc.attach.slurm_relay"]
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            pipes = os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno())
            self._process.stdin.close()
            self._process.stdout.close()
            self._relay = Relay(self._engine, *pipes, far=False, over=lambda _reason: None)
        return self._relay.open(address.replace(_UNREACHABLE, "127.0.0.1"), failed)

    def close(self) -> None:
        pass  # the relay ends with this process, which closes its input


class OurEnd(End):
    """One end over one of our fabrics.

    Args:
        fabric: ``ucx-shm``, ``ucx-tcp``, ``tcp`` or ``relay``.
        spins: whether a waiting thread spins before it sleeps, for as long as in the default configuration.
    """

    def __init__(self, *, near: bool, fabric: str, spins: bool) -> None:
        config = load().config
        spin_us = config.fabric.spin_us if spins else 0
        self._near = near
        self._fabric = fabric
        self._engine = Engine(spin_us * 1e-6)
        self._engine.start()
        identity = Identity(_ALLOCATION, Role.CONTROLLER if near else Role.PROC, "here", new_incarnation())
        limits = replace(config.transport, around_after_s=0.05)
        self._ucx = fabric in _TRANSPORTS
        ucx = None
        if self._ucx:
            ucx = UcxFabric(
                self._engine,
                replace(config.fabric, trusted=True, order=("ucx", "tcp"), spin_us=spin_us),
                replace(config.ucx, transports=_TRANSPORTS[fabric]),
                login=False,
                interfaces=["lo"],
                max_frame_bytes=limits.max_frame_bytes,
            )
        relay = _PipeRelay(self._engine) if fabric == "relay" and near else None
        self._node = Node(self._engine, identity, _KEY, self, limits, relay, fabric=ucx)
        self._num = 0
        self._memory: Memory | None = None
        self._channel: FrameChannel

    # ---- callbacks of the node ----

    def on_channel(self, channel: FrameChannel) -> None:
        """The near end has connected."""
        self._channel = channel

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Do nothing: the measurement is over, or fails by itself."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Count received frames; at the far end, answer them."""
        if self._near:
            self._num += 1
        elif frame.dest == _ECHO:
            channel.send(Frame(Kind.RESULT, _ECHO, 0, frame.body, frame.buffers))
        elif frame.dest == _TAKE:
            self._num += 1
        else:
            channel.send(Frame(Kind.RESULT, _COUNT, self._num))
            self._num = 0

    # ---- measurements ----

    def open(self, address: str) -> str:
        if not self._near:
            return self._node.listen(["127.0.0.1"])[0]
        if self._fabric == "relay":
            address = address.replace("127.0.0.1", _UNREACHABLE)
        channel = self._channel = self._node.connect([address])
        if self._ucx:
            self._engine.wait(lambda: bool(channel.why), _PATIENCE_S)
        if channel.fabric != self._fabric.replace("-", "/"):
            raise Missing(f"got {channel.fabric} instead of {self._fabric}: {channel.why or 'no reason given'}")
        return ""

    def _wait(self, num: int) -> None:
        if not self._engine.wait(lambda: self._num >= num, _PATIENCE_S):
            raise TimeoutError(f"{self._num} of {num} frames came back")

    def _frame(self, dest: int, nbytes: int) -> Frame:
        data = written(nbytes)
        if nbytes < _BUFFER_BYTES:
            return Frame(Kind.RESULT, dest, 0, bytes(data))
        return Frame(Kind.RESULT, dest, 0, b"", [data])

    def ping(self, num: int, nbytes: int) -> list[float]:
        if not self._near:
            return []
        frame = self._frame(_ECHO, nbytes)
        channel, wait = self._channel, self._engine.wait
        took = []
        clock = time.perf_counter
        for _ in range(num):
            begun_s = clock()
            self._num = 0
            channel.send(frame)
            wait(lambda: self._num > 0, _PATIENCE_S)
            took.append(clock() - begun_s)
        return took

    def pour(self, num: int, nbytes: int) -> float:
        if not self._near:
            return 0.0
        frame = self._frame(_TAKE, nbytes)
        self._num = 0
        begun_s = time.perf_counter()
        for _ in range(num):
            self._channel.send(frame)
        self._channel.send(Frame(Kind.RESULT, _COUNT))
        self._wait(1)
        return time.perf_counter() - begun_s

    def hold(self, nbytes: int) -> str:
        if self._memory is None:
            self._memory = self._node.register(fresh(nbytes))
        return self._memory.key.hex()

    def fetch(self, key: str, num: int, nbytes: int) -> float:
        into = written(nbytes)
        begun_s = time.perf_counter()
        for _ in range(num):
            self._channel.get(bytes.fromhex(key), 0, into).wait(_PATIENCE_S)
        return time.perf_counter() - begun_s

    def store(self, key: str, num: int, nbytes: int) -> float:
        data = written(nbytes)
        begun_s = time.perf_counter()
        for _ in range(num):
            self._channel.put(bytes.fromhex(key), 0, data).wait(_PATIENCE_S)
        return time.perf_counter() - begun_s

    def idle(self, seconds: float) -> float:
        begun_s, used_s = time.perf_counter(), cpu_s()
        Flag(self._engine).wait(seconds)
        return cpu_share(begun_s, used_s)
