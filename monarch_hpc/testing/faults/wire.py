"""A relay between two ends of TCP connections, which delays, slows down, holds back or cuts what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

from monarch_hpc.transport.address import parse_address, render_address

__all__ = ["FaultyWire"]

_CHUNK_BYTES = 64 << 10
_TICK_S = 0.01


class FaultyWire:
    """Passes connections on to *target*; as a context manager it is closed at the end.

    What it holds back stays in the senders' buffers, as on a link that loses every packet: neither side learns of it.

    Args:
        target: the address behind it, ``tcp://address:port``.

    Attributes:
        address: what to connect to, in place of *target*.
        delay_s: time that each piece is late.
        bytes_per_s: limit of each direction; 0 for none.
        holds_there: whether nothing passes to the target.
        holds_back: whether nothing passes from the target.
    """

    def __init__(self, target: str) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = 0.0
        self.holds_there = False
        self.holds_back = False
        self._target = parse_address(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = render_address(self._listener.getsockname())
        self._open: list[socket.socket] = []
        self._closed = False
        self._threads = [self._start(self._accept)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hold(self, *, held: bool) -> None:
        """Hold back both directions, as a cable that is pulled; or let them pass again."""
        self.holds_there = self.holds_back = held

    def cut(self) -> None:
        """End all connections; new ones pass."""
        sockets, self._open = self._open, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and refuse new ones."""
        self._closed = True
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *args: object) -> threading.Thread:
        assert callable(work)
        thread = threading.Thread(target=work, args=args, name="faulty-wire", daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        self._listener.settimeout(_TICK_S * 10)
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            self._threads += [self._start(self._pass, near, far, "there"), self._start(self._pass, far, near, "back")]

    def _pass(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with source, contextlib.suppress(OSError):
            source.settimeout(None)
            while not self._closed:
                self._wait(direction)
                data = source.recv(_CHUNK_BYTES)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                self._wait(direction)
                time.sleep(self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0.0))
                sink.sendall(data)

    def _wait(self, direction: str) -> None:
        while (self.holds_there if direction == "there" else self.holds_back) and not self._closed:
            time.sleep(_TICK_S)
