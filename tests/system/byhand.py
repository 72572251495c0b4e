"""The dialling end of a channel, made by hand: for tests that send what no node would."""

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
from tests.system.parties import ALLOCATION, KEY, PATIENCE_S

__all__ = ["ByHand", "bits", "flipped", "last_words", "plain", "seal"]


class ByHand:
    """A socket to *address*, and what it takes to speak on it; nothing is sent before it is told to.

    Attributes:
        sent: all bytes so far.
        answer: the listening side's, once `greet` has returned.
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
        """Send the greeting and take the answer."""
        self.send(self._dialing.hello)
        self.answer = self.sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
        self.peer, (self.seal, self.open) = self._dialing.finish(self.answer)

    def prove(self) -> None:
        """Greet, and prove that the greeting is no recorded one."""
        self.greet()
        self.send(make_proof(self.seal))

    def record(self, plain: bytes) -> bytes:
        """The next record, around *plain*."""
        return seal(self.seal, plain)

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.sock.close()


def seal(cipher: Cipher, text: bytes) -> bytes:
    """One record of the `tcp` fabric."""
    sealed = cipher.seal(text)
    return struct.pack("<I", len(sealed)) + sealed


def plain(frame: Frame) -> bytes:
    """What a small frame's record holds."""
    return b"".join((pack_head(frame), frame.body, *frame.buffers))


def last_words(sock: socket.socket) -> bytes:
    """All that the other side sends until it hangs up."""
    words = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            words += data
    return words


def flipped(data: bytes, bit: int) -> bytes:
    """*data* with one bit flipped."""
    forged = bytearray(data)
    forged[bit // 8] ^= 1 << bit % 8
    return bytes(forged)


def bits(data: bytes) -> Iterator[bytes]:
    """*data* once for each of its bits, with that bit flipped."""
    return (flipped(data, bit) for bit in range(8 * len(data)))
