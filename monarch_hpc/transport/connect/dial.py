"""The dialling side of a process: tries all addresses of a peer at once, with a handshake on each."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import AuthenticationError, PeerLost, TransportError
from monarch_hpc.transport.address import begin_connect
from monarch_hpc.transport.api import FrameChannel, Peer
from monarch_hpc.transport.connect.relay import CLOSED_THERE
from monarch_hpc.transport.connect.routes import RouteKind, Routes
from monarch_hpc.transport.engine.engine import STALE_S, Engine
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.handshake import ANSWER_BYTES, Dialing
from monarch_hpc.transport.secure.noise import Cipher

__all__ = ["Adopt", "Dialer", "Done", "Opener"]

Done = Callable[[FrameChannel | TransportError], None]
"""Called on the driver with the channel, or with the error if none could be opened."""

Adopt = Callable[[socket.socket, Peer, tuple[Cipher, Cipher]], FrameChannel]
"""Makes a channel of a connected socket, the authenticated peer, and the ciphers for sending and receiving."""

_RESETS_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Retry delays after a reset: an overloaded listener may reset us before reading our hello, and one that has answered
a recording of our hello refuses the original."""


class Opener(Protocol):
    """An indirect route: opens sockets that are joined to addresses which cannot be dialled from here."""

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        """Return a socket joined to *address*; *failed* is called with the reason if it ends."""
        ...

    def close(self) -> None:
        """Close the route and all its sockets."""
        ...


class Dialer:
    """The dialling side of a process: opens channels to processes that listen. For the driver of the engine.

    Args:
        begin: begins a handshake with a process, by its incarnation and address.
        known: looks up the open channel to an incarnation.
        adopt: makes a channel of an authenticated socket.
        fence: bars incarnations.
        relay: the fallback where peers cannot be dialled from here.
        forwarders: addresses of processes that may forward to a known incarnation.
    """

    def __init__(
        self,
        engine: Engine,
        limits: TransportConfig,
        begin: Callable[[int, str], Dialing],
        known: Callable[[int], FrameChannel | None],
        adopt: Adopt,
        fence: Fence,
        relay: Opener | None,
        forwarders: Sequence[str],
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.begin = begin
        self.known = known
        self.adopt = adopt
        self.forwarders = forwarders
        self.routes = Routes()
        self._fence = fence
        self._relay = relay
        self._races: list[_Race] = []

    @property
    def relay(self) -> Opener | None:
        """The route of last resort; None once another route has worked."""
        return self._relay if self.routes.relay_may_help else None

    def dial(self, addresses: Sequence[str], incarnation: int, done: Done) -> None:
        """Open a channel to the process that listens at *addresses*; call *done* with the channel or with the error.

        All addresses are tried at once; the first to authenticate wins.
        """
        known = self.known(incarnation)
        if known is not None:
            done(known)
            return
        barred = self._fence.barred(incarnation)
        if barred:
            done(PeerLost(", ".join(addresses), barred))
            return
        self._races = [race for race in self._races if not race.over]
        if any(race.join(incarnation, done) for race in self._races):
            return
        self._races.append(_Race(self, list(addresses), incarnation, done))

    def close(self, reason: str) -> None:
        """Abort all that is being dialled."""
        for race in self._races:
            race.cancel(reason)


class _Race:
    """Dials all addresses of a peer at once; the first to authenticate wins.

    Indirect routes join the race after `TransportConfig.around_after_s`, when all direct ones have failed, or at once
    if an indirect route worked last time: through each forwarder, if the wanted incarnation is known, and through the
    relay to each address. So addresses that are dead or wrong cost no more than that delay.
    """

    def __init__(self, dialer: Dialer, addresses: list[str], incarnation: int, done: Done) -> None:
        self._dialer = dialer
        self._addresses = addresses
        self._incarnation = incarnation
        self._done: list[Done] = [done]
        self._errors: list[TransportError] = []
        self._running: set[_Outbound] = set()
        self._tried_indirect = False
        self._timers = [dialer.engine.call_later(dialer.limits.around_after_s, self._try_indirect)]
        if not addresses:
            self._end(PeerLost("a peer", "it has no address"))
            return
        self._start([(RouteKind.DIRECT, address) for address in addresses])
        if dialer.routes.indirect_at_once(addresses):
            self._try_indirect()

    @property
    def over(self) -> bool:
        """Whether the race has ended, with or without a winner."""
        return not self._done

    def join(self, incarnation: int, done: Done) -> bool:
        """Also report to *done* if this race dials *incarnation*: two channels would lose the order of frames."""
        joins = bool(incarnation and incarnation == self._incarnation and self._done)
        if joins:
            self._done.append(done)
        return joins

    def cancel(self, reason: str) -> None:
        """End the race without a winner."""
        self._end(PeerLost(", ".join(self._addresses), f"no longer dialled: {reason}"))

    def _start(self, routes: list[tuple[RouteKind, str]]) -> None:
        # All are listed before the first one starts: the race is over when the last one listed fails.
        started = [_Outbound(self._dialer, self, self._incarnation, route, address) for route, address in routes]
        self._running.update(started)
        limits = self._dialer.limits
        for timeout_s, group in (
            (limits.connect_s, [outbound for outbound in started if outbound.route is not RouteKind.RELAY]),
            (limits.relay_s, [outbound for outbound in started if outbound.route is RouteKind.RELAY]),
        ):
            if group:
                self._limit(group, timeout_s)
        for outbound in started:
            if self._done:
                outbound.start()

    def _limit(self, group: Sequence[_Outbound], timeout_s: float, *, again: bool = False) -> None:
        """Give a group of addresses up after this time, or after twice of it if this process itself stood still."""
        engine = self._dialer.engine
        due_s = engine.clock() + timeout_s

        def end() -> None:
            if engine.clock() - due_s > STALE_S and not again:
                self._limit(group, timeout_s, again=True)
                return
            for outbound in self._running.intersection(group):
                outbound.give_up(f"no answer in {timeout_s:.1f} s")

        self._timers.append(engine.call_later(timeout_s, end))

    def _try_indirect(self) -> None:
        if self._tried_indirect or not self._done:
            return
        self._tried_indirect = True
        forwarders = set(self._dialer.forwarders).difference(self._addresses) if self._incarnation else set()
        # A peer that answered with another key, or other versions, would do so through the relay, too.
        spoke = self._errors and not any(isinstance(error, PeerLost) for error in self._errors)
        relayed = [] if self._dialer.relay is None or spoke else self._addresses
        routes = [(RouteKind.FORWARD, address) for address in sorted(forwarders)]
        self._start([*routes, *((RouteKind.RELAY, address) for address in relayed)])

    def won(self, outbound: _Outbound, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> None:
        """An address has authenticated."""
        self._running.discard(outbound)
        if not self._done:
            outbound.sock.close()
            return
        self._dialer.routes.worked(self._addresses, outbound.route)
        channel = self._dialer.adopt(outbound.sock, peer, ciphers)
        # The peer may have dialled us meanwhile: then there are two channels, and the first one is used.
        self._end(self._dialer.known(self._incarnation) or channel)

    def lost(self, outbound: _Outbound, error: TransportError) -> None:
        """An address has failed."""
        self._running.discard(outbound)
        self._errors.append(error)
        if self._done and not self._running:
            self._try_indirect()
        if self._done and not self._running:
            # An answer from a process with our key says more than silence from the other addresses.
            answers = [error for error in self._errors if not isinstance(error, PeerLost)]
            self._end((answers or self._errors)[0])

    def _end(self, result: FrameChannel | TransportError) -> None:
        waiting, self._done = self._done, []
        if waiting:
            for timer in self._timers:
                timer.cancel()
            for outbound in list(self._running):
                outbound.drop()
        for done in waiting:
            done(result)


class _Outbound:
    """One address of a race: the peer's own, or a forwarder's."""

    def __init__(self, dialer: Dialer, race: _Race, incarnation: int, route: RouteKind, address: str) -> None:
        self.route = route
        self._dialer = dialer
        self._race = race
        self._target = address
        self._address = f"{route.value}{address}"
        self._incarnation = incarnation
        self._dialing: Dialing
        self._answer = b""
        self._sent = False
        self._resets = iter(_RESETS_S)
        self._over = False
        self.sock: socket.socket

    def start(self) -> None:
        """Begin to connect, unless it was given up."""
        if self._over:
            return
        self._dialing = self._dialer.begin(self._incarnation, self._address)  # no hello is answered twice
        try:
            if self.route is RouteKind.RELAY:
                assert self._dialer.relay is not None, "relay addresses are listed only if there is a relay"
                self.sock = self._dialer.relay.open(self._target, self._relay_failed)
                self._greet()
                return
            self.sock = begin_connect(self._target)
            self._dialer.engine.watch(self.sock.fileno(), self._on_ready, read=False, write=True)
        except (OSError, TransportError) as error:
            self._fail(error)

    def _greet(self) -> None:
        self.sock.send(self._dialing.hello)  # 192 bytes always fit an empty socket buffer
        self._sent = True
        self._dialer.engine.watch(self.sock.fileno(), self._on_ready)

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
                raise self._closed()
            self._answer += data
            if len(self._answer) < ANSWER_BYTES:
                return
            peer, ciphers = self._dialing.finish(self._answer)
        except BlockingIOError:
            return
        except (OSError, TransportError) as error:
            reset = isinstance(error, (ConnectionResetError, BrokenPipeError))
            again_s = next(self._resets, None) if reset else None
            if again_s is None:
                self._fail(error)
            else:
                self._greet_again(again_s)
            return
        self._over = True
        self._dialer.engine.unwatch(self.sock.fileno())
        self._race.won(self, peer, ciphers)

    def _greet_again(self, delay_s: float) -> None:
        self._dialer.engine.unwatch(self.sock.fileno())
        self.sock.close()
        self._answer, self._sent = b"", False
        self._dialer.engine.call_later(delay_s, self.start)

    def _closed(self) -> TransportError:
        if self.route is RouteKind.FORWARD:
            return PeerLost(self._address, "it does not know the process that is wanted, or cannot reach it")
        return AuthenticationError(self._address, "it closed the connection after our hello: does it hold another key?")

    def _fail(self, error: OSError | TransportError) -> None:
        self.drop()
        if isinstance(error, OSError):
            lost = PeerLost(self._address, error.strerror or str(error))
            lost.__cause__ = error
            error = lost
        self._race.lost(self, error)

    def give_up(self, why: str) -> None:
        """Count this address as failed."""
        self._fail(PeerLost(self._address, why))

    def drop(self) -> None:
        """Close the connection, unless it won."""
        if not self._over:
            self._over = True
            if hasattr(self, "sock"):
                self._dialer.engine.unwatch(self.sock.fileno())
                self.sock.close()
