"""The handshake: the first three messages of a channel, of fixed layout, with no state kept for strangers.

    hello   magic, protocol, role, allocation, incarnations, epoch (the Noise prologue, 48 bytes)
            then Noise message 1 around the dialling side's card, of fixed size
    answer  Noise message 2 around the listening side's card
    proof   an empty record under the fresh keys: only this shows that the hello was not a recording

Pure: bytes in, bytes out; sockets and deadlines are in `transport.connect.listen` and `transport.connect.dial`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from monarch_hpc.core.errors import AuthenticationError, VersionMismatch
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.core.version import PYTHON_VERSION, __version__
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.secure.link import LinkKey
from monarch_hpc.transport.secure.noise import PUBLIC_BYTES, TAG_BYTES, Cipher, Initiator, Responder
from monarch_hpc.wire.frames import PROTOCOL

__all__ = [
    "ANSWER_BYTES",
    "HELLO_BYTES",
    "PROOF_BYTES",
    "Accepting",
    "Dialing",
    "check_proof",
    "check_versions",
    "ephemeral_key",
    "make_proof",
]

_MAGIC = b"MNHP"
_PROLOGUE = struct.Struct("<4sHBx16sQQQ")  # magic, protocol, role, allocation, own and wanted incarnation, epoch
_CARD = struct.Struct("<QQB3B28s48s")  # incarnation, epoch, role, Python version, package version, host

HELLO_BYTES = _PROLOGUE.size + PUBLIC_BYTES + _CARD.size + TAG_BYTES
ANSWER_BYTES = PUBLIC_BYTES + _CARD.size + TAG_BYTES
PROOF_BYTES = TAG_BYTES


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
    try:
        known = Role(role)
    except ValueError as error:
        raise AuthenticationError(address, f"its card names role {role}, which this version does not know") from error
    return Peer(
        role=known,
        host=host.rstrip(b"\0").decode(errors="replace"),
        incarnation=incarnation,
        epoch=epoch,
        python=f"{major}.{minor}.{micro}",
        package=package.rstrip(b"\0").decode(errors="replace"),
        address=address,
    )


def _through(peer: Peer, link: LinkKey) -> Peer:
    return replace(peer, allocation=link.allocation, link=link.name)


def _check_size(what: str, message: bytes, size: int, address: str) -> None:
    if len(message) != size:
        raise AuthenticationError(address, f"{what} of {len(message)} bytes, not {size}")


def check_versions(python: str, package: str, where: str) -> None:
    """Refuse a peer whose pickled values and classes this side could not load.

    Args:
        python: the peer's interpreter, ``major.minor.micro``; pickled code needs the same minor version.
        package: the version of the peer's monarch_hpc.
        where: the peer, for the error.

    Raises:
        VersionMismatch: the versions differ.
    """
    if python.split(".")[:2] != PYTHON_VERSION.split(".")[:2]:
        raise VersionMismatch("Python", f"{PYTHON_VERSION} ({sys.executable})", f"{python} ({where})")
    if package != __version__:
        raise VersionMismatch("monarch_hpc", __version__, f"{package} ({where})")


def ephemeral_key(hello: bytes) -> bytes:
    """The ephemeral public key of a hello; it is unique to a hello, unless that is a recording."""
    return hello[_PROLOGUE.size : _PROLOGUE.size + PUBLIC_BYTES]


def make_proof(send: Cipher) -> bytes:
    """Make the dialling side's last message before records, `PROOF_BYTES` long."""
    return send.seal(b"")


def check_proof(receive: Cipher, proof: bytes) -> None:
    """Check that *proof* was made for this answer.

    Raises:
        AuthenticationError: it was not: the hello was a recording.
    """
    receive.open(proof)


class Dialing:
    """The dialling side of one handshake.

    Args:
        wanted: the incarnation that must answer; 0 for any.
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
        """Read the answer, `ANSWER_BYTES` long; return the authenticated peer and the (send, receive) ciphers.

        Raises:
            AuthenticationError: the answering process does not hold the key, or is another incarnation.
            VersionMismatch: it holds the key, but runs other versions.
        """
        _check_size("an answer", answer, ANSWER_BYTES, self._address)
        card, send, receive = self._noise.finish(answer)
        peer = _peer(card, self._address)
        if self._wanted not in (0, peer.incarnation):
            raise AuthenticationError(str(peer), "another process than the wanted one listens at this address")
        check_versions(peer.python, peer.package, f"{peer.role.name.lower()} on {peer.host}")
        return peer, (send, receive)


class Accepting:
    """The listening side of one handshake: `read`, then `answer`.

    Args:
        links: by their names, the links whose keys a proc may prove instead of the allocation's.
    """

    def __init__(
        self, identity: Identity, key: bytes, address: str, links: Mapping[str, LinkKey] = MappingProxyType({})
    ) -> None:
        self._links = links
        self._identity = identity
        self._key = key
        self._address = address
        self._wanted = 0
        self._noise: Responder | None = None

    def read(self, hello: bytes) -> tuple[Peer, int]:
        """Read the first message, `HELLO_BYTES` long.

        Returns:
            The peer that made it with the key, perhaps long ago, and the incarnation that it is for; 0 for any.

        Raises:
            AuthenticationError: the hello is of neither this allocation nor a link.
        """
        _check_size("a hello", hello, HELLO_BYTES, self._address)
        prologue = hello[: _PROLOGUE.size]
        magic, protocol, role, allocation, incarnation, wanted, epoch = _PROLOGUE.unpack(prologue)
        own, key = self._identity, self._key
        link = None
        if allocation != bytes.fromhex(own.allocation):
            link = self._links.get(allocation.hex())
        if link is not None:
            key = link.key
        if magic != _MAGIC or protocol != PROTOCOL or (link is None and allocation != bytes.fromhex(own.allocation)):
            raise AuthenticationError(self._address, "it speaks another protocol, or belongs to another allocation")
        # An actor may call an actor of its own proc; but then the hello names that proc.
        if incarnation == own.incarnation != wanted:
            raise AuthenticationError(self._address, "it sent our own hello back")
        noise = Responder(prologue, key)
        peer = _peer(noise.read(hello[_PROLOGUE.size :]), self._address)
        if (peer.incarnation, peer.epoch, int(peer.role)) != (incarnation, epoch, role):
            raise AuthenticationError(self._address, "its card contradicts its hello")
        if link is not None and peer.role is not Role.PROC:
            raise AuthenticationError(self._address, f"a link is for procs, not for a {peer.role.name.lower()}")
        peer = replace(peer, allocation=own.allocation) if link is None else _through(peer, link)
        self._wanted, self._noise = wanted, noise
        return peer, wanted

    def answer(self) -> tuple[bytes, tuple[Cipher, Cipher]]:
        """Return the second message and the (send, receive) ciphers.

        A peer with other versions is answered all the same, so that it can report the difference; it closes the
        connection after reading, and so does this side if `check_versions` refuses the peer.

        Raises:
            AuthenticationError: the hello is for another incarnation.
        """
        if self._wanted not in (0, self._identity.incarnation):
            raise AuthenticationError(self._address, "it looks for another process")
        assert self._noise is not None, "read() comes first"
        answer, send, receive = self._noise.answer(_card(self._identity))
        return answer, (send, receive)
