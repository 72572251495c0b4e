"""Dialling: several addresses at once, each with its handshake."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Protocol

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import AuthenticationError, PeerLost, TransportError
from monarch_hpc.transport.address import RELAY_PREFIX, begin_connect
from monarch_hpc.transport.api import Channel, Peer
from monarch_hpc.transport.engine import Engine
from monarch_hpc.transport.handshake import ANSWER_BYTES, Dialing
from monarch_hpc.transport.noise import Cipher
from monarch_hpc.transport.relay import CLOSED_THERE

__all__ = ["Dialer", "Done", "Opener", "Race"]

Done = Callable[[Channel | TransportError], None]
"""Called on the driver with the channel, or with why there is none."""


class Opener(Protocol):
    """A way around: hands out sockets that are joined to addresses which cannot be dialled from here."""

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        """A socket joined to *address*; *failed* is told why if it ends."""
        ...

    def close(self) -> None:
        """End it, and all its sockets."""
        ...


class Dialer(Protocol):
    """For whom is dialled."""

    @property
    def engine(self) -> Engine:
        """Drives the sockets."""
        ...

    @property
    def limits(self) -> TransportConfig:
        """Among them the deadline."""
        ...

    @property
    def relay(self) -> Opener | None:
        """The way around where the direct ones are blocked, if there is one."""
        ...

    @property
    def prefers_relay(self) -> bool:
        """Whether the relay has proved to be the only way."""
        ...

    def dialing(self, incarnation: int, address: str) -> Dialing:
        """Begin a handshake."""
        ...

    def adopt(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> Channel:
        """Make a channel of the socket that won."""
        ...


class Race:
    """Dials several addresses at once; the first one that proves itself wins.

    Where there is a relay, it joins the race after `TransportConfig.relay_after_s`, or when all direct
    ways have failed; where it has won before, it runs alone.
    """

    def __init__(self, node: Dialer, addresses: list[str], incarnation: int, done: Done) -> None:
        self._node = node
        self._addresses = addresses
        self._incarnation = incarnation
        self._done: Done | None = done
        self._errors: list[TransportError] = []
        self._running: set[_Outbound] = set()
        self._relayed = node.relay is None
        self._deadline_s = node.limits.connect_s
        self._timer = node.engine.call_later(self._deadline_s, self._late)
        self._relay_timer = node.engine.call_later(node.limits.relay_after_s, self._start_relay)
        if node.prefers_relay:
            self._start_relay()
        else:
            self._start(None)

    @property
    def over(self) -> bool:
        """Whether it has ended, with or without a winner."""
        return self._done is None

    def cancel(self, reason: str) -> None:
        """End it without a winner."""
        self._end(PeerLost(", ".join(self._addresses), f"no longer dialled: {reason}"))

    def _start(self, relay: Opener | None) -> None:
        started = [_Outbound(self._node, self, self._incarnation, address, relay) for address in self._addresses]
        self._running.update(started)
        for outbound in started:
            if self._done is not None:
                outbound.start()
        if not started:
            self._end(PeerLost("a peer", "it has no address"))

    def _start_relay(self) -> None:
        if self._relayed or self._done is None:
            return
        self._relayed = True
        self._timer.cancel()
        self._deadline_s += self._node.limits.relay_s
        self._timer = self._node.engine.call_later(self._node.limits.relay_s, self._late)
        self._start(self._node.relay)

    def won(self, outbound: _Outbound, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> None:
        """An address proved itself."""
        self._running.discard(outbound)
        if self._done is None:
            outbound.sock.close()
        else:
            self._end(self._node.adopt(outbound.sock, peer, ciphers))

    def lost(self, outbound: _Outbound, error: TransportError) -> None:
        """An address failed."""
        self._running.discard(outbound)
        self._errors.append(error)
        if self._done is None or self._running:
            return
        if not self._relayed and isinstance(error, PeerLost):
            self._start_relay()
            return
        # What somebody with our key said is worth more than silence from the other addresses.
        said = [error for error in self._errors if not isinstance(error, PeerLost)]
        self._end((said or self._errors)[0])

    def _late(self) -> None:
        self._end(PeerLost(", ".join(self._addresses), f"no answer in {self._deadline_s:.1f} s"))

    def _end(self, result: Channel | TransportError) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._timer.cancel()
            self._relay_timer.cancel()
            for outbound in list(self._running):
                outbound.drop()
            done(result)


class _Outbound:
    """One address of a race, dialled directly or through a relay."""

    def __init__(self, node: Dialer, race: Race, incarnation: int, address: str, relay: Opener | None) -> None:
        self._node = node
        self._race = race
        self._target = address
        self._relay = relay
        self._address = address if relay is None else f"{RELAY_PREFIX}{address}"
        self._dialing = node.dialing(incarnation, self._address)
        self._answer = b""
        self._why = "it closed at our greeting, as an agent does that holds another key"
        self._sent = False
        self._over = False
        self.sock: socket.socket

    def start(self) -> None:
        """Begin to connect."""
        try:
            if self._relay is not None:
                self.sock = self._relay.open(self._target, self._relay_failed)
                self._greet()
                return
            self.sock = begin_connect(self._target)
            self._node.engine.watch(self.sock.fileno(), self._on_ready, read=False, write=True)
        except (OSError, TransportError) as error:
            self._fail(error)

    def _greet(self) -> None:
        self.sock.send(self._dialing.hello)  # 192 bytes always fit an empty socket buffer
        self._sent = True
        self._node.engine.watch(self.sock.fileno(), self._on_ready)

    def _relay_failed(self, why: str) -> None:
        if not self._over and why != CLOSED_THERE:
            self._fail(PeerLost(self._address, why))

    def _on_ready(self, _mask: int) -> None:
        try:
            if not self._sent:
                status = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if status:
                    raise OSError(status, os.strerror(status))
                self._greet()
                return
            data = self.sock.recv(ANSWER_BYTES - len(self._answer))
            if not data:
                raise AuthenticationError(self._address, self._why)
            self._answer += data
            if len(self._answer) < ANSWER_BYTES:
                return
            peer, ciphers = self._dialing.finish(self._answer)
        except BlockingIOError:
            return
        except (OSError, TransportError) as error:
            self._fail(error)
            return
        self._over = True
        self._node.engine.unwatch(self.sock.fileno())
        self._race.won(self, peer, ciphers)

    def _fail(self, error: OSError | TransportError) -> None:
        self.drop()
        if isinstance(error, OSError):
            lost = PeerLost(self._address, error.strerror or str(error))
            lost.__cause__ = error
            error = lost
        self._race.lost(self, error)

    def drop(self) -> None:
        """Give up this address, unless it won."""
        if not self._over:
            self._over = True
            if hasattr(self, "sock"):
                self._node.engine.unwatch(self.sock.fileno())
                self.sock.close()
