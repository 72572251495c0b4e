"""The dialling end of a channel, step by step: for tests that send what no node would."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.transport.address import parse_address, tune
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, Dialing, make_proof
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.wire.frames import Frame, pack_head
from tests.system.support.parties import ALLOCATION, KEY, PATIENCE_S

__all__ = ["ByHand", "bits", "flipped", "last_words", "plain", "seal"]


class ByHand:
    """A socket to *address*, with the ciphers to use it; it sends only on request.

    Attributes:
        sent: all bytes sent so far.
        answer: the listening side's answer, once `greet` has returned.
    """

    def __init__(
        self,
        address: str,
        *,
        role: Role = Role.CONTROLLER,
        epoch: int = 0,
        allocation: str = ALLOCATION,
        key: bytes = KEY,
    ) -> None:
        self.sock = socket.create_connection(parse_address(address), PATIENCE_S)
        tune(self.sock)
        self.identity = Identity(allocation, role, "here", new_incarnation(), epoch)
        self._dialing = Dialing(self.identity, key, 0, address)
        self.sent = b""
        self.answer = b""
        self.peer: Peer
        self.seal: Cipher
        self.open: Cipher

    def send(self, data: bytes) -> None:
        """Send *data* unchanged."""
        self.sent += data
        self.sock.sendall(data)

    def greet(self) -> None:
        """Send the hello and read the answer."""
        self.send(self._dialing.hello)
        self.answer = self.sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
        self.peer, (self.seal, self.open) = self._dialing.finish(self.answer)

    def prove(self) -> None:
        """Send the hello, and the proof that it is not a recording."""
        self.greet()
        self.send(make_proof(self.seal))

    def record(self, plain: bytes) -> bytes:
        """Seal *plain* as the next record."""
        return seal(self.seal, plain)

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.sock.close()


def seal(cipher: Cipher, text: bytes) -> bytes:
    """Make one record of the `tcp` fabric."""
    sealed = cipher.seal(text)
    return struct.pack("<I", len(sealed)) + sealed


def plain(frame: Frame) -> bytes:
    """Return the plain content of a small frame's record."""
    return b"".join((pack_head(frame), frame.body, *frame.buffers))


def last_words(sock: socket.socket) -> bytes:
    """Return everything that the other side sends until it closes the connection."""
    words = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            words += data
    return words


def flipped(data: bytes, bit: int) -> bytes:
    """Return *data* with one bit flipped."""
    forged = bytearray(data)
    forged[bit // 8] ^= 1 << bit % 8
    return bytes(forged)


def bits(data: bytes) -> Iterator[bytes]:
    """Return *data* once per bit, with that bit flipped."""
    return (flipped(data, bit) for bit in range(8 * len(data)))
