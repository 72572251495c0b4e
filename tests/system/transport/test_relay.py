"""One end of a relay whose pipe is full."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from monarch_hpc.testing import wait_until
from monarch_hpc.transport.connect.relay import GREETING, Relay
from monarch_hpc.transport.engine.engine import Engine

_PAGE_BYTES = 4096
_HEAD = struct.Struct("<BII")
_DATA = 2


def test_a_stream_that_begins_beside_a_full_pipe_is_read_when_that_has_emptied(engine: Engine) -> None:
    """This holds even if the last queued record was sent alone."""
    from_far, to_near = os.pipe()
    from_near, to_far = os.pipe()
    fcntl.fcntl(to_far, fcntl.F_SETPIPE_SZ, _PAGE_BYTES)
    os.write(to_near, GREETING)
    os.set_blocking(from_near, False)
    relays: list[Relay] = []
    socks: list[socket.socket] = []

    def begin() -> None:
        relay = Relay(engine, from_far, to_far, far=False, over=lambda _why: None)
        # Two of these do not fit into the pipe together.
        socks.extend(relay.open("tcp://" + "x" * 3000, lambda _why: None) for _ in range(20))
        socks[-1].send(b"hello")
        relays.append(relay)

    engine.call_soon(begin)
    wait_until("the relay", lambda: relays)
    came = bytearray()

    def hello() -> bool:
        try:
            came.extend(os.read(from_near, _PAGE_BYTES))
        except BlockingIOError:
            return False
        return _HEAD.pack(_DATA, 20, 5) + b"hello" in came

    wait_until("the last stream's word", hello, interval_s=0.001)
    engine.call_soon(lambda: relays[0].close("over"))
    for sock in socks:
        sock.setblocking(True)
        assert sock.recv(1) == b""
        sock.close()
    os.close(to_near)
    os.close(from_near)
