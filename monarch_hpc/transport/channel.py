"""A channel: one peer's frames, in order, over its socket at first and over a faster lane once there is one.

The socket stays open: it authenticated the peer, whose death closes it. Shared memory gives no such sign.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import ChannelClosed, FrameError, PeerLost, TransportError
from monarch_hpc.core.errors.transport import NO_MEMORY
from monarch_hpc.transport.api import Fabric, FabricKind, Lane, Listener, Peer
from monarch_hpc.transport.connect.introduction import Introduction
from monarch_hpc.transport.credit import Credit, cost_of
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.transport.held_back import HeldBack
from monarch_hpc.transport.memory.own import OwnMemories
from monarch_hpc.transport.memory.remote import RemoteMemories
from monarch_hpc.transport.memory.requests import of_owner
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.parts import PartReader, send_in_parts
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.sharing import SharedFrames
from monarch_hpc.transport.tcp.channel import INLINE_BYTES, LINGER_S, TcpChannel, read_farewell
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind, bytes_of

__all__ = ["PeerChannel"]

_CALL = Kind.CALL  # on the path of every frame: an enum member's lookup costs ten times a global's
_CREDIT = Kind.CREDIT
_BYE = Kind.BYE
_LAST_PASSED_ON = Kind.STOP  # later kinds are the transport's own, except CANCEL and those of casts
_FIRST_OF_CASTS = Kind.CAST
_LAST_OF_CASTS = Kind.REDUCE

_OF_MEMORY = frozenset((Kind.GET, Kind.PUT, Kind.GET_LIST, Kind.PUT_LIST, Kind.MEMORY, Kind.PULL))


class PeerChannel:
    """An established channel; see `transport.api.FrameChannel`.

    Args:
        sock: connected and authenticated.
        ciphers: for sending and for receiving.
        own_memory: the memory that peers may read and write.
        fabric: the fabric to use where the peer has it too; None to stay on sockets.
        dialed: whether this side opened the channel.
        hands_on: whether this process is an agent, which hands messages on to procs.

    Attributes:
        opened_s: when it was opened, on the engine's clock.
        memory: the registered memory of the peer.
        sharing: its frames whose buffers are mapped.
    """

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        peer: Peer,
        ciphers: tuple[Cipher, Cipher],
        listener: Listener,
        limits: TransportConfig,
        own_memory: OwnMemories,
        fabric: Fabric | None,
        *,
        dialed: bool,
        hands_on: bool,
    ) -> None:
        self.dialed = dialed
        self.opened_s = engine.clock()
        self._engine = engine
        self._listener = listener
        self._limits = limits
        self._fabric = fabric
        self._own_memory = own_memory
        self._wire = TcpChannel(engine, sock, peer, ciphers, self._on_frame, self._on_lost, limits)
        self._wire.land(self._land)
        self._lane: Lane | None = None  # frames are sent on it, once it is connected
        self._incoming: Lane | None = None  # frames are received on it, once SWITCH arrived
        self._relies = False  # on the lane: SWITCH was sent, or has come
        self._introduction = Introduction(
            peer, fabric, self._open_lane, self._send_on_socket, self._switch, self._stay_on_socket, dialed=dialed
        )
        self._error: TransportError | None = None
        self._over = False  # on_lost was called
        self._peer_left = False  # BYE arrived on the lane
        self.memory = RemoteMemories(
            *(engine, self._send_whole, lambda: self.error, str(peer), limits),
            *(own_memory.cross_memory, own_memory.devices, self._introduction.begin),
        )
        self.sharing = SharedFrames(self._send_whole, keeps=hands_on)
        self._parts = PartReader()
        self._part_numbers = itertools.count(1)
        self._credit = Credit(limits.mailbox_bytes, engine.wake_waiters)
        self._held_back = HeldBack(engine, self._credit, peer, lambda: self.error is not None)
        self._linger: Timer | None = None
        self.fabric = (FabricKind.RELAY if peer.relayed else FabricKind.TCP).value
        if peer.via:
            self.fabric += f" via {peer.via}"
        self.why = ""
        self.mark = 0

    def start(self) -> None:
        """Begin to read; call once, on the driver."""
        self._wire.start()
        self._introduction.start(self._engine.call_later)

    @property
    def peer(self) -> Peer:
        """The process at the other end."""
        return self._wire.peer

    @property
    def error(self) -> TransportError | None:
        """Why the channel has ended; None while it is open."""
        return self._error or self._wire.error

    @property
    def received_s(self) -> float:
        """When bytes last arrived, on the engine's clock."""
        lane = self._incoming
        return self._wire.received_s if lane is None else max(self._wire.received_s, lane.received_s)

    @property
    def queued_bytes(self) -> int:
        """Bytes that `send` accepted and that neither the kernel nor the fabric has taken yet."""
        lane = self._lane
        return self._wire.queued_bytes + (0 if lane is None else lane.pending_bytes)

    @property
    def blocked_s(self) -> float:
        """Total time in seconds that senders were blocked by a full mailbox at the other end."""
        return self._held_back.total_s

    # ---- sending ----

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send *frame*; see `transport.api.FrameChannel.send`."""
        if frame.kind is _CALL:
            cost = cost_of(frame)
            if not self._credit.try_take(frame.dest, cost) and not self._wait_for_credit(frame.dest, cost, end_s):
                return False
        sent = frame
        try:
            if frame.buffers:
                sent = self.sharing.wrap(frame)
            large = sent.buffers or len(sent.body) > INLINE_BYTES
            if large and bytes_of(sent) > self._limits.max_frame_bytes:
                send_in_parts(sent, next(self._part_numbers), self._limits.max_frame_bytes, self._send_whole)
            elif (lane := self._lane) is not None and self._error is None:
                lane.send(sent)
            else:
                self._send_whole(sent)
        except BaseException as error:  # a frame over a limit, or Ctrl-C, which may come after the frame has gone
            if isinstance(error, TransportError):
                self.sharing.withdraw(sent)
            if frame.kind is _CALL:
                self._credit.give(frame.dest, cost_of(frame))
            raise
        return True

    def _send_whole(self, frame: Frame) -> None:
        lane = self._lane
        if lane is None:
            self._wire.send(frame)
        elif self._error is not None:
            raise self._error.for_later_calls(str(self.peer))
        else:
            lane.send(frame)

    def _wait_for_credit(self, dest: int, cost: int, end_s: float | None) -> bool:
        """Wait for credit; return False if *end_s*, on the engine's clock, passed first."""
        taken = self._held_back.take_credit(dest, cost, end_s)
        error = self.error
        if error is not None:
            raise error.for_later_calls(str(self.peer))
        return taken

    def consumed(self, dest: int, cost: int) -> None:
        """Return the credit *cost* of a call that actor *dest* has handled, so that its sender may send more."""
        self._give_back(dest, self._credit.consumed(dest, cost))

    def retire(self, dest: int) -> None:
        """Drop all state of actor *dest*, which has ended, on both sides."""
        self._give_back(dest, self._credit.retire(dest))

    def _give_back(self, dest: int, grant: int) -> None:
        if grant:
            with contextlib.suppress(TransportError):  # the sender is gone
                self.send(Frame(Kind.CREDIT, dest, grant))

    def close(self, reason: str) -> None:
        """End the channel and send the peer *reason*."""
        lane = self._lane
        if lane is None:
            self._wire.close(reason)
            return
        if self.error is not None:
            return
        # The peer reads this after all other frames, and then closes the socket.
        self._error = ChannelClosed(str(self.peer), reason)
        with contextlib.suppress(TransportError):
            lane.send(Frame(Kind.BYE, body=reason.encode()))
        self._linger = self._engine.call_later(LINGER_S, functools.partial(self._wire.give_up, reason))

    def give_up(self, reason: str) -> None:
        """Declare the peer lost because of *reason*."""
        if self._error is None:
            self._error = PeerLost(str(self.peer), reason)
        self._wire.give_up(reason)

    # ---- memory ----

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Read the peer's memory; see `transport.api.FrameChannel.get`."""
        return self.memory.get(key, offset, into)

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write to the peer's memory; see `transport.api.FrameChannel.put`."""
        return self.memory.put(key, offset, data)

    def _land(self, head: FrameHead, body: Buffer | None) -> list[memoryview] | None:
        if head.kind is Kind.CAST:
            return self.sharing.land(head, self._limits.cast_shared_bytes)
        if body is None or head.kind is Kind.DATA:
            return None if body is None else self.memory.land(head)
        if head.kind is Kind.PART:
            return self._parts.land(head)
        return self._own_memory.memories.land(self, head, body)

    # ---- receiving ----

    def _on_frame(self, frame: Frame) -> None:
        """Handle a frame that arrived on the socket."""
        if frame.kind <= _LAST_PASSED_ON:
            if not self._over:
                self._listener.on_frame(self, frame)
        elif frame.kind is Kind.OFFER:
            try:
                self._introduction.on_offer(frame.body)
            except FrameError as error:
                self._end(error)
        elif frame.kind is Kind.SWITCH:
            if self._incoming is None:
                self._end(PeerLost(str(self.peer), f"it uses a lane that is not there: {self.why}"))
            else:
                self._relies = True
                self._incoming.open()
        elif frame.kind is Kind.PROBE:
            self._on_probe(frame)
        else:
            self._take(frame)

    def on_lane_frame(self, frame: Frame) -> None:
        """Handle a frame that arrived on the lane; all frames of the socket came before it."""
        try:
            if frame.kind <= _LAST_PASSED_ON:
                if not self._over:
                    self._listener.on_frame(self, frame)
            elif frame.kind is _BYE:
                self._peer_left = True
                self._end(PeerLost(str(self.peer), read_farewell(frame)))
            else:
                self._take(frame)
        except (TransportError, MemoryError) as error:
            self._end(error if isinstance(error, TransportError) else PeerLost(str(self.peer), NO_MEMORY))
        except Exception as error:  # noqa: BLE001 the frames behind this one must still arrive
            self._engine.on_fault(f"a frame from {self.peer} could not be handled", error)

    def _take(self, frame: Frame) -> None:
        if self._over:
            return
        if frame.kind is _CREDIT:
            self._credit.give(frame.dest, frame.reply)
        elif _FIRST_OF_CASTS <= frame.kind <= _LAST_OF_CASTS or frame.kind is Kind.CANCEL:
            self._listener.on_frame(self, frame)
        elif frame.kind is Kind.DATA:
            self.memory.on_data(frame)
        elif frame.kind in (Kind.PART, Kind.SHARED):
            whole = (self._parts.on_part if frame.kind is Kind.PART else self.sharing.on_frame)(frame)
            if whole is not None:
                if not (whole.kind <= _LAST_PASSED_ON or _FIRST_OF_CASTS <= whole.kind <= _LAST_OF_CASTS):
                    raise FrameError(f"a frame of kind {whole.kind} in parts, or in shared memory")
                self._listener.on_frame(self, whole)
        elif frame.kind in _OF_MEMORY:
            if of_owner(frame):
                self.memory.on_answer(frame)
            else:
                self._introduction.begin()
                self._own_memory.serve(self, frame)

    # ---- the lane ----

    def probe(self, asked_us: int) -> None:
        """Ask the peer to send on its lane, if it has one, then echo *asked_us* on the socket."""
        self._send_on_socket(Frame(Kind.PROBE, 0, asked_us))

    def _on_probe(self, frame: Frame) -> None:
        if not frame.dest:
            with contextlib.suppress(TransportError):  # no echo if the lane did not take the frame
                if self._lane is not None:
                    self._lane.send(Frame(Kind.PROBE, 1))
                self._send_on_socket(Frame(Kind.PROBE, 1 if self._lane is not None else 2, frame.reply))
        elif frame.dest == 1 and self._incoming is not None:
            self._incoming.answered(frame.reply)

    def _send_on_socket(self, frame: Frame) -> None:
        """Send on the socket even when there is a lane."""
        with contextlib.suppress(TransportError):  # the listener's on_lost reports it
            self._wire.send(frame)

    def _open_lane(self) -> Lane:
        """Open a lane; the fabric must have started."""
        assert self._fabric is not None
        lane = self._incoming = self._fabric.open_lane(self, str(self.peer), self._limits.send_queue_bytes)
        return lane

    def _switch(self, lane: Lane, kind: FabricKind, why: str) -> None:
        """Send all further frames on *lane*."""
        with contextlib.suppress(TransportError):
            self._relies = True
            self._wire.divert(Frame(Kind.SWITCH), lane.send)
            self._lane = lane
            self.memory.settle(lane)
        self.fabric = kind.value
        self.why = ", ".join((why, *lane.transports))

    def _stay_on_socket(self, why: str) -> None:
        self.why = why
        self.memory.settle(None)

    def on_lane_error(self, error: TransportError) -> None:
        """The lane failed: frames may be lost with it, unless neither side has used it."""
        if self._relies or (lane := self._incoming) is None:
            self._end(error)
            return
        self._incoming = None
        self._stay_on_socket(str(error))
        # Not while the fabric delivers the lane's events.
        self._engine.call_soon(functools.partial(lane.close, error, peer_died=False))

    # ---- the end ----

    def _end(self, error: TransportError) -> None:
        if self._error is None:
            self._error = error
        self._wire.give_up(str(error))

    def _on_lost(self, error: TransportError) -> None:
        """End the channel, whose socket is closed, once the frames that arrived before have been delivered."""
        self._introduction.cancel()
        if self._incoming is None:
            self._finish(error)
        else:
            # Two rounds, so that the engine polls the fabric once in between.
            self._engine.call_later(0.0, lambda: (self._engine.call_later(0.0, lambda: self._finish(error)), None)[1])

    def _finish(self, error: TransportError) -> None:
        if self._over:
            return
        self._over = True
        if self._linger is not None:
            self._linger.cancel()
        if self._error is None:
            self._error = error
        if self._incoming is not None:
            left = self._peer_left or isinstance(self._error, ChannelClosed)
            self._incoming.close(self._error, peer_died=not left)
        self.memory.fail_all(self._error)
        self.sharing.close()
        self._parts.clear()
        self._own_memory.on_lost(self, self._error)
        self._engine.wake_waiters()
        self._listener.on_lost(self, self._error)
