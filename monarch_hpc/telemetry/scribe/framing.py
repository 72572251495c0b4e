"""Messages between an agent and the helper of its host, on a socket pair: each a length and the text of a message.

Neither end waits for the other: what does not fit into the socket stays in memory until it does.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterator

from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.table import decode

__all__ = ["MessageSocket"]

_LENGTH_BYTES = 4
_PIECE_BYTES = 1 << 18
_MAX_FDS = 16


class MessageSocket:
    """One end of a socket pair, which it closes. It never blocks.

    Attributes:
        ended: whether the other end is closed.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._input = bytearray()
        self._fds: deque[int] = deque()
        self._output: deque[tuple[memoryview, int]] = deque()
        self.ended = False

    def fileno(self) -> int:
        """The descriptor, for a poll."""
        return self._socket.fileno()

    @property
    def num_waiting(self) -> int:
        """The number of messages that wait for room in the socket."""
        return len(self._output)

    def send(self, message: Message, fd: int = -1) -> None:
        """Send a message, and a descriptor with it, of which a duplicate is kept until it is gone.

        Raises:
            OSError: out of descriptors; nothing is sent.
        """
        self.send_encoded(encode(message), fd)

    def send_encoded(self, body: bytes | bytearray, fd: int = -1) -> None:
        """Send a message that is encoded already; see `send`."""
        data = memoryview(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
        self._output.append((data, os.dup(fd) if fd >= 0 else -1))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._output and not self.ended:
            data, fd = self._output.popleft()
            fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())] if fd >= 0 else []
            try:
                num_sent = self._socket.sendmsg([data], fds, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._output.appendleft((data, fd))
                return
            except OSError:
                self._output.appendleft((data, fd))
                self.ended = True
                return
            if fd >= 0:
                os.close(fd)
            if num_sent < len(data):
                self._output.appendleft((data[num_sent:], -1))

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have come.

        Raises:
            FrameError: one of them is none.
        """
        return map(decode, self.receive_encoded())

    def receive_encoded(self) -> Iterator[bytes]:
        """Yield the messages that have come, as text that is not looked at."""
        while not self.ended:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, _PIECE_BYTES, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except OSError:
                data, fds = b"", []
            self._fds += fds
            self._input += data
            self.ended = not data
        while len(self._input) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._input[:_LENGTH_BYTES], "little")
            if len(self._input) < end:
                break
            body = bytes(self._input[_LENGTH_BYTES:end])
            del self._input[:end]
            yield body

    def take_fd(self) -> int:
        """The descriptor that came with the message which `receive` has just yielded; the caller closes it.

        Raises:
            IndexError: none came.
        """
        return self._fds.popleft()

    def close(self) -> None:
        """Close the socket, and the descriptors that have not been sent or taken."""
        self._socket.close()
        self.ended = True
        for fd in (*self._fds, *(fd for _, fd in self._output)):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
        self._output.clear()
