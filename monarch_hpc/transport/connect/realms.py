"""Allocations whose processes one process can dial: what it proves there, with which key, and by which detours."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.ids import Identity
from monarch_hpc.transport.api import FrameChannel, Peer
from monarch_hpc.transport.connect.dial import Adopt, Dialer, Opener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.handshake import Dialing
from monarch_hpc.transport.secure.link import LinkKey
from monarch_hpc.transport.secure.noise import Cipher

__all__ = ["Realm", "Realms"]


@dataclass(slots=True, eq=False)
class Realm:
    """What a process needs to dial the processes of one allocation.

    Attributes:
        identity: what it proves there.
        with_fabric: whether its processes may be reached over the fabric.
    """

    identity: Identity
    dialer: Dialer
    relay: Opener | None
    with_fabric: bool


class Realms:
    """The allocations that one process has joined. They are changed on the driver, or before it begins.

    Args:
        identity: the process; its allocation, role and incarnation.
        fence: bars incarnations.
        known: looks up the open channel to an incarnation.
        adopt: makes a channel of an authenticated socket.

    Attributes:
        links: keys of other allocations whose procs this process accepts, by name.
    """

    def __init__(
        self,
        engine: Engine,
        limits: TransportConfig,
        identity: Identity,
        fence: Fence,
        known: Callable[[int], FrameChannel | None],
        adopt: Adopt,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._identity = identity
        self._fence = fence
        self._known = known
        self._adopt = adopt
        self.links: dict[str, LinkKey] = {}
        self._joined: dict[str, Realm] = {}
        self._relays: list[Opener] = []  # to be closed

    @property
    def joined(self) -> Mapping[str, Realm]:
        """What is needed to dial, by allocation."""
        return self._joined

    def get(self, allocation: str) -> Realm | None:
        """What is needed to dial processes of *allocation* (empty: the process's own); None if it was not joined."""
        return self._joined.get(allocation or self._identity.allocation)

    @property
    def own(self) -> Realm:
        """What is needed to dial processes of the process's own allocation."""
        return self._joined[self._identity.allocation]

    @property
    def relayed(self) -> bool:
        """Whether processes of any allocation may be reached through a relay."""
        return any(realm.relay is not None for realm in list(self._joined.values()))

    def join(
        self,
        allocation: str,
        key: bytes,
        *,
        name: str,
        relay: Opener | None,
        forwarders: Sequence[str],
        with_fabric: bool,
    ) -> None:
        """Be able to dial the processes of *allocation*; see `Node.join` for the arguments."""

        def begin(incarnation: int, address: str) -> Dialing:
            return Dialing(realm.identity, key, incarnation, address)

        def adopt(sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> FrameChannel:
            return self._adopt(sock, replace(peer, allocation=allocation), ciphers)

        identity = replace(self._identity, allocation=name or allocation, epoch=0)
        dialer = Dialer(self._engine, self._limits, begin, self._known, adopt, self._fence, relay, forwarders)
        realm = self._joined[allocation] = Realm(identity, dialer, relay, with_fabric)

    def link(self, link: LinkKey) -> None:
        """Trust the procs of another allocation: accept them, and be able to dial them, with the key of *link*."""
        self.links[link.name] = link
        self.join(link.allocation, link.key, name=link.name, relay=None, forwarders=(), with_fabric=True)

    def leave(self, allocation: str, reason: str) -> None:
        """Forget the key of *allocation*, and abort all that is being dialled there; its relay stays open."""
        realm = self._joined.pop(allocation, None)
        for name, link in list(self.links.items()):
            if link.allocation == allocation:
                del self.links[name]
        if realm is not None:
            realm.dialer.close(reason)
            if realm.relay is not None:
                self._relays.append(realm.relay)

    def set_epoch(self, epoch: int, allocation: str) -> None:
        """Dial as the controller of *epoch* from here on, in *allocation* (empty: in the process's own)."""
        realm = self._joined[allocation or self._identity.allocation]
        realm.identity = replace(realm.identity, epoch=epoch)

    def close(self, reason: str) -> None:
        """Abort all that is being dialled; `close_relays` then closes all relays."""
        for realm in self._joined.values():
            realm.dialer.close(reason)
            if realm.relay is not None:
                self._relays.append(realm.relay)

    def close_relays(self) -> None:
        """Close the relays of allocations that were left; not on the driver."""
        while self._relays:
            self._relays.pop().close()
