"""The first two messages of a channel: fixed layout, nothing kept for strangers.

    hello   magic, protocol, role, allocation, incarnations, epoch (the Noise prologue, 48 bytes)
            then Noise message 1 around a fixed card of the dialling side
    answer  Noise message 2 around the card of the listening side

Pure: bytes in, bytes out; sockets and deadlines are `transport.node`'s.
"""

from __future__ import annotations

import platform
import struct
import sys

from monarch_hpc.core.errors import AuthenticationError, VersionMismatch
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.core.version import __version__
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.noise import PUBLIC_BYTES, TAG_BYTES, Cipher, Initiator, Responder
from monarch_hpc.wire.frames import PROTOCOL

__all__ = ["ANSWER_BYTES", "HELLO_BYTES", "Accepting", "Dialing", "check_versions"]

_MAGIC = b"MNHP"
_PROLOGUE = struct.Struct("<4sHBx16sQQQ")  # magic, protocol, role, allocation, own and wanted incarnation, epoch
_CARD = struct.Struct("<QQB3B28s48s")  # incarnation, epoch, role, Python version, package version, host

HELLO_BYTES = _PROLOGUE.size + PUBLIC_BYTES + _CARD.size + TAG_BYTES
ANSWER_BYTES = PUBLIC_BYTES + _CARD.size + TAG_BYTES


def _card(identity: Identity) -> bytes:
    return _CARD.pack(
        identity.incarnation,
        identity.epoch,
        identity.role,
        *sys.version_info[:3],
        __version__.encode()[:28],
        identity.host.encode()[:48],
    )


def _peer(card: bytes, address: str) -> Peer:
    incarnation, epoch, role, major, minor, micro, package, host = _CARD.unpack(card)
    return Peer(
        role=Role(role),
        host=host.rstrip(b"\0").decode(errors="replace"),
        incarnation=incarnation,
        epoch=epoch,
        python=f"{major}.{minor}.{micro}",
        package=package.rstrip(b"\0").decode(errors="replace"),
        address=address,
    )


def check_versions(python: str, package: str, where: str) -> None:
    """Refuse a peer whose values and classes this side could not load.

    Args:
        python: the peer's interpreter, ``major.minor.micro``; pickled code needs the same minor.
        package: the peer's monarch_hpc.
        where: the peer, for the message.

    Raises:
        VersionMismatch: the versions differ.
    """
    if python.split(".")[:2] != platform.python_version().split(".")[:2]:
        raise VersionMismatch("Python", f"{platform.python_version()} ({sys.executable})", f"{python} ({where})")
    if package != __version__:
        raise VersionMismatch("monarch_hpc", __version__, f"{package} ({where})")


class Dialing:
    """The dialling side of one handshake.

    Args:
        wanted: the incarnation that must answer; 0 for whichever listens.
    """

    def __init__(self, identity: Identity, key: bytes, wanted: int, address: str) -> None:
        self._wanted = wanted
        self._address = address
        self._prologue = _PROLOGUE.pack(
            _MAGIC,
            PROTOCOL,
            identity.role,
            bytes.fromhex(identity.allocation),
            identity.incarnation,
            wanted,
            identity.epoch,
        )
        self._noise = Initiator(self._prologue, key)
        self._hello = self._prologue + self._noise.first(_card(identity))

    @property
    def hello(self) -> bytes:
        """The first message, `HELLO_BYTES` long."""
        return self._hello

    def finish(self, answer: bytes) -> tuple[Peer, tuple[Cipher, Cipher]]:
        """Read the answer, `ANSWER_BYTES` long; return the proven peer and (send, receive) ciphers.

        Raises:
            AuthenticationError: whoever answers does not hold the key, or is another incarnation.
            VersionMismatch: it does, but runs other versions.
        """
        card, send, receive = self._noise.finish(answer)
        peer = _peer(card, self._address)
        if self._wanted not in (0, peer.incarnation):
            raise AuthenticationError(str(peer), "another process listens where the one we want used to")
        check_versions(peer.python, peer.package, f"{peer.role.name.lower()} on {peer.host}")
        return peer, (send, receive)


class Accepting:
    """The listening side of one handshake."""

    def __init__(self, identity: Identity, key: bytes, address: str) -> None:
        self._identity = identity
        self._key = key
        self._address = address

    def answer(self, hello: bytes) -> tuple[bytes, Peer, tuple[Cipher, Cipher]]:
        """Read the first message, `HELLO_BYTES` long; return the answer, the peer and (send, receive) ciphers.

        A peer with other versions is answered all the same, so that it can say what differs; it
        closes after reading, and so does this side if `check_versions` refuses the peer.

        Raises:
            AuthenticationError: not of this allocation, or not for this incarnation.
        """
        prologue = hello[: _PROLOGUE.size]
        magic, protocol, role, allocation, incarnation, wanted, epoch = _PROLOGUE.unpack(prologue)
        own = self._identity
        if magic != _MAGIC or protocol != PROTOCOL or allocation != bytes.fromhex(own.allocation):
            raise AuthenticationError(self._address, "it speaks another protocol, or of another allocation")
        if wanted not in (0, own.incarnation):
            raise AuthenticationError(self._address, "it looks for another process")
        noise = Responder(prologue, self._key)
        peer = _peer(noise.read(hello[_PROLOGUE.size :]), self._address)
        if (peer.incarnation, peer.epoch, int(peer.role)) != (incarnation, epoch, role):
            raise AuthenticationError(self._address, "its card contradicts its greeting")
        answer, send, receive = noise.answer(_card(own))
        return answer, peer, (send, receive)
