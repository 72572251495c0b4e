"""Floors: the speed of Python directly on the kernel, or with other libraries."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType

from benchmarks.ends.end import Missing, Plain, written

__all__ = ["MpiEnd", "PipeEnd", "SocketEnd", "ZmqEnd"]

_FETCH, _STORE, _END = memoryview(b"g"), memoryview(b"p"), memoryview(b".")


def load(name: str, package: str) -> ModuleType:
    """Import an optional package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{package} is not installed here ({error})") from error


class PipeEnd(Plain):
    """Two pipes."""

    def open(self, address: str) -> str:
        """Make the two pipes as files, or open them; both ends open them in the same order."""
        folder = Path(address or tempfile.mkdtemp(prefix="bench-"))
        to_far, to_near = folder / "to-far", folder / "to-near"
        if not self.near:
            os.mkfifo(to_far)
            os.mkfifo(to_near)
            # Read and write, so that opening does not block.
            self._in, self._out = os.open(to_far, os.O_RDWR), os.open(to_near, os.O_RDWR)
            return str(folder)
        self._in, self._out = os.open(to_near, os.O_RDWR), os.open(to_far, os.O_RDWR)
        with contextlib.suppress(OSError):
            to_far.unlink()
            to_near.unlink()
            folder.rmdir()
        return ""

    def send(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._out, data) :]

    def receive(self, into: memoryview) -> None:
        at = 0
        while at < len(into):
            at += os.readv(self._in, [into[at:]])


class SocketEnd(Plain):
    """A blocking TCP socket."""

    def open(self, address: str) -> str:
        if self.near:
            host, _, port = address.rpartition(":")
            self._sock = socket.create_connection((host, int(port)))
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return ""
        self._server = socket.create_server(("127.0.0.1", 0))
        return "{}:{}".format(*self._server.getsockname())

    def _connected(self) -> socket.socket:
        with contextlib.suppress(AttributeError):
            return self._sock
        self._sock, _ = self._server.accept()
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._sock

    def send(self, data: memoryview) -> None:
        self._connected().sendall(data)

    def receive(self, into: memoryview) -> None:
        sock = self._connected()
        at = 0
        while at < len(into):
            at += sock.recv_into(into[at:])

    def hold(self, nbytes: int) -> str:
        threading.Thread(target=self._serve, args=(nbytes,), daemon=True).start()
        return "a thread"

    def _serve(self, nbytes: int) -> None:
        """Send memory, or receive it, as the near end asks by one byte each time; until it ends."""
        data, order = written(nbytes), memoryview(bytearray(1))
        while True:
            self.receive(order)
            if order == _FETCH:
                self.send(data)
            elif order == _STORE:
                self.receive(data)
                self.send(order)
            else:
                self.send(order)  # from here on the socket is the main thread's
                return

    def fetch(self, key: str, num: int, nbytes: int) -> float:
        into = written(nbytes)
        begun_s = time.perf_counter()
        for _ in range(num):
            self.send(_FETCH)
            self.receive(into)
        return self._end(begun_s)

    def store(self, key: str, num: int, nbytes: int) -> float:
        data, answer = written(nbytes), memoryview(bytearray(1))
        begun_s = time.perf_counter()
        for _ in range(num):
            self.send(_STORE)
            self.send(data)
            self.receive(answer)
        return self._end(begun_s)

    def _end(self, begun_s: float) -> float:
        took_s = time.perf_counter() - begun_s
        self.send(_END)
        self.receive(memoryview(bytearray(1)))
        return took_s


class ZmqEnd(Plain):
    """pyzmq, a pair of PAIR sockets."""

    def __init__(self, *, near: bool, scheme: str) -> None:
        super().__init__(near=near)
        self._zmq = load("zmq", "pyzmq")
        self._scheme = scheme
        self._socket = self._zmq.Context().socket(self._zmq.PAIR)

    def open(self, address: str) -> str:
        if self.near:
            self._socket.connect(address)
            return ""
        self._socket.bind("tcp://127.0.0.1:*" if self._scheme == "tcp" else "ipc://*")
        return str(self._socket.getsockopt_string(self._zmq.LAST_ENDPOINT))

    def send(self, data: memoryview) -> None:
        self._socket.send(data, copy=len(data) < 2**16)

    def receive(self, into: memoryview) -> None:
        frame = self._socket.recv(copy=False)
        assert len(frame) == len(into)


class MpiEnd(Plain):
    """mpi4py; started by mpirun."""

    def __init__(self) -> None:
        self._mpi = load("mpi4py.MPI", "mpi4py")
        self._world = self._mpi.COMM_WORLD
        rank = self._world.Get_rank()
        super().__init__(near=rank == 0)
        self._other = 1 - rank

    def open(self, address: str) -> str:
        return ""

    def send(self, data: memoryview) -> None:
        self._world.Send([data, self._mpi.BYTE], dest=self._other)

    def receive(self, into: memoryview) -> None:
        self._world.Recv([into, self._mpi.BYTE], source=self._other)
