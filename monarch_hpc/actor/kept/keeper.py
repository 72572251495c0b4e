"""Keeps a proc's answers to programs until they are read, and lists them, and the proc's actors, for a successor."""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from typing import Any, cast

from monarch_hpc.actor.kept.answers import KeptAnswers, KeptCall
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import head_of, unpack_head, unpack_spawn, view_of
from monarch_hpc.actor.messages.pending import Answer, Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import DeliveryUnknown, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.text.description import qualified_name
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.wire.frames import Frame, Kind, copy_of
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["KEEPER", "READ", "Keeper", "ask_proc", "open_keeper", "pack_read", "pack_request"]

KEEPER = 2
"""Number of the port at which a proc takes requests about its answers, known to all programs."""

READ = struct.Struct("<QQ?")
"""A caller, its number of a call, and whether it has read the answer, or is about to. Sent for each answer, so not
pickled."""

_MAX_FAULTS = 256
"""Failures of actors that are kept for a successor; a failure has a traceback, a few kilobytes."""

_log = Logger(__name__)


def pack_read(caller: int, slot: int, *, done: bool) -> bytes:
    """The message that an answer was read; or that it is about to be, if it is not *done*."""
    return READ.pack(caller, slot, done)


def pack_request(request: str, *fields: object) -> bytes:
    """Other requests: ``prepare`` with a limit and a description, ``list``, ``supervise``, ``get`` with a call,
    ``share`` with a description, ``release``.

    A proc that shares itself serves the programs of all runs; once released, it keeps no answers any more.
    """
    return b"\0" + dumps((request, *fields))[0]


def ask_proc(runtime: Runtime, proc: ProcRef, answer: Answer, request: str, *fields: object) -> None:
    """Ask a proc for what it lists, or to share itself; on any thread."""
    slot = Slot(proc.incarnation, f"proc {proc.rank} on {proc.host}", answer)
    runtime.call(proc, KEEPER, pack_request(request, *fields), (), slot)


def open_keeper(runtime: Runtime) -> None:
    """Take requests of programs in this proc; once, before its first frame."""
    keeper: list[Keeper] = []
    shared: list[bytes] = []  # what the last program said of the mesh when it was kept

    def on_message(channel: MessageLink, frame: Frame) -> None:
        channel.consumed(KEEPER, cost_of(frame))
        peer = channel.peer
        if not isinstance(peer, Peer) or peer.role is not Role.CONTROLLER or peer.allocation != runtime.info.allocation:
            _log.warning("%s is not a program, and cannot ask for kept answers", peer)
            return
        if len(frame.body) == READ.size:
            if keeper:
                caller, slot, done = READ.unpack(frame.body)
                (keeper[0].answers.take if done else keeper[0].answers.hand)(caller, slot)
            return
        request, *fields = cast(tuple[Any, ...], loads(memoryview(frame.body)[1:], frame.buffers))
        if request == "share":
            shared[:] = fields
            runtime.node.accept_all_runs()
            _answer(channel, frame.reply, None)
        elif request == "list":
            kept = keeper[0] if keeper else None
            about = shared[0] if shared else kept.about if kept is not None else b""
            calls, num_dropped = ([], 0) if kept is None else kept.calls_of_others(channel)
            _answer(channel, frame.reply, (about, _actors(runtime), calls, num_dropped))
        else:
            if request == "prepare" and not keeper and not shared:
                keeper.append(Keeper(runtime, *fields))
            if request == "release":
                for one in keeper:
                    one.close()
                keeper.clear()
                runtime.replier.drops_orphans = True
            elif keeper:
                keeper[0].handle(channel, frame.reply, request, fields)
            elif request == "get":
                runtime.replier.reply_failure(channel, frame.reply, runtime.info.host, _gone())

    runtime.actors.ports[KEEPER] = on_message


def _answer(channel: MessageLink, reply: int, value: object) -> None:
    """Answer a request of a program; such an answer is not kept."""
    body, buffers = dumps(value)
    try:
        channel.send(Frame(Kind.RESULT, reply, 0, body, buffers))
    except TransportError as error:
        _log.info("could not answer a program: %s", error)


def _gone() -> DeliveryUnknown:
    return DeliveryUnknown("the answer", "it was dropped: config key 'run.kept_bytes', or another has read it")


class Keeper:
    """The answers of one proc. Made by the first program of its run that asks for it; then each answer is copied.

    Args:
        max_bytes: config key `run.kept_bytes`.
        about: what the program says of the proc's mesh, for a successor.

    Attributes:
        about: see above.
        answers: the calls of programs, and their answers.
    """

    def __init__(self, runtime: Runtime, max_bytes: int, about: bytes) -> None:
        self._runtime = runtime
        self.about = about
        self.answers = KeptAnswers(max_bytes)
        self._names: dict[int, str] = {}  # of actors, also of those that have ended
        self._faults: deque[Frame] = deque(maxlen=_MAX_FAULTS)
        self._program: MessageLink | None = None
        self._deliver = runtime.on_frame
        # Only in procs that keep answers: others do not pay for it at each frame.
        runtime.on_frame = self._on_frame  # type: ignore[method-assign]
        runtime.replier.keeper = self

    def close(self) -> None:
        """Keep no answers from here on: the proc's mesh serves all runs, and no successor takes it over."""
        self.answers = KeptAnswers(0)
        self._runtime.on_frame = self._deliver  # type: ignore[method-assign]
        self._runtime.replier.keeper = None

    def _on_frame(self, channel: MessageLink, frame: Frame) -> None:
        kind, peer = frame.kind, channel.peer
        if isinstance(peer, Peer) and peer.role is Role.CONTROLLER:
            if kind is Kind.CALL and frame.reply and frame.dest != KEEPER:
                self.answers.begin(KeptCall(peer.incarnation, frame.reply, frame.dest, _head_of(frame)))
            elif kind is Kind.SPAWN and not frame.reply:
                self._names[frame.dest] = unpack_spawn(frame).name
        self._deliver(channel, frame)

    def keep(self, channel: MessageLink, frame: Frame) -> MessageLink:
        """Keep an answer to a program; return the channel to send it on, another one for failures after a takeover."""
        peer = channel.peer
        if not isinstance(peer, Peer) or peer.role is not Role.CONTROLLER:
            return channel
        if frame.dest:
            self.answers.answer(peer.incarnation, frame.dest, frame)
        elif getattr(channel, "error", None) is not None:  # the failure of an actor whose program is gone
            if self._program is not None and self._program is not channel:
                return self._program
            copies = [copy_of(buffer) for buffer in frame.buffers]
            self._faults.append(Frame(frame.kind, 0, frame.reply, bytes(frame.body), copies))
        return channel

    def handle(self, channel: MessageLink, reply: int, request: str, fields: list[Any]) -> None:
        """Carry out a program's request; its answer is not kept."""
        try:
            match request:
                case "supervise":
                    self._program = channel
                    while self._faults:
                        channel.send(self._faults.popleft())
                case "get":
                    self._get(channel, reply, *fields)
        except TransportError as error:
            _log.info("could not answer a program: %s", error)

    def _get(self, channel: MessageLink, reply: int, caller: int, slot: int) -> None:
        def send(answer: Frame) -> None:
            try:
                channel.send(Frame(answer.kind, reply, 0, answer.body, answer.buffers))
            except TransportError as error:
                _log.info("could not deliver a kept answer: %s", error)  # it stays

        if not self.answers.read(caller, slot, send):
            self._runtime.replier.reply_failure(channel, reply, self._runtime.info.host, _gone())

    def calls_of_others(self, channel: MessageLink) -> tuple[list[tuple[Any, ...]], int]:
        """The calls of other programs than the one at the end of *channel*, and the number of dropped answers."""
        peer = channel.peer
        assert isinstance(peer, Peer)
        calls = []
        for call in self.answers.of_others(peer.incarnation):
            name, endpoint = self._names.get(call.actor) or f"actor {call.actor:x}", ""
            with contextlib.suppress(Exception):  # what was no call to an endpoint has failed
                endpoint = unpack_head(call.head)[0]
            calls.append((call.caller, call.slot, call.actor, name, endpoint, call.answer is not None, call.in_hand))
        return calls, self.answers.num_dropped


def _actors(runtime: Runtime) -> list[tuple[Any, ...]]:
    """Number, name, place and class of each actor here that a program has spawned."""
    actors = []
    for actor, cell in list(runtime.actors.cells.items()):
        if not cell.owner:
            target = cell.entries.target
            cls = type(target) if target is not None else None
            actors.append((actor, cell.name, view_of(cell.region), *_pack_class(cls)))
    return actors


def _head_of(frame: Frame) -> bytes:
    try:
        return head_of(frame)
    except struct.error:
        return b""


def _pack_class(cls: type | None) -> tuple[bytes, str]:
    """A class, pickled, and its name; no bytes if the actor has no object yet, or its class cannot be pickled."""
    if cls is None:
        return b"", ""
    name = qualified_name(cls)
    try:
        return dumps(cls)[0], name
    except Exception:  # noqa: BLE001 pickling runs user code
        return b"", name
