"""One actor in its proc: its thread, its mailbox, its object."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol

from monarch_hpc.actor.context import Context, ProcInfo, entered
from monarch_hpc.actor.endpoint import EndpointMethod, endpoints_of
from monarch_hpc.actor.payload import View, region_of, unpack_call
from monarch_hpc.core.errors import ActorDied
from monarch_hpc.core.shape import Extent, Point
from monarch_hpc.transport.api import Channel
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.transport.engine import Engine
from monarch_hpc.wire.frames import Frame
from monarch_hpc.wire.serializer import loads

__all__ = ["Cell", "Replier"]


class Replier(Protocol):
    """What a cell needs of its process."""

    engine: Engine
    info: ProcInfo

    def reply(self, channel: Channel, slot: int, value: object) -> None:
        """Answer a call."""
        ...

    def reply_failure(self, channel: Channel, slot: int, where: str, error: BaseException) -> None:
        """Answer a call with an exception."""
        ...

    def run_coroutine(self, coroutine: Coroutine[object, object, object]) -> object:
        """Run a coroutine on the proc's event loop and wait for it."""
        ...

    def exit(self, code: int) -> None:
        """End the process."""
        ...


class Cell:
    """Runs one actor: constructor first, then its messages, one at a time, on a thread of its own.

    While it has nothing to do its thread waits in the engine, and thereby drives the I/O of the
    proc: a call to an idle actor runs on the thread that read it from the socket.
    """

    def __init__(self, process: Replier, spawn: Frame) -> None:
        self._process = process
        self._spawn = spawn
        self._actor = spawn.dest
        # With what each call costs its sender until it is handled. None ends the actor.
        self._mailbox: deque[tuple[Channel, Frame, int] | None] = deque()
        self._name = "an actor"
        self._where = "an actor"
        self._object: object = None
        self._endpoints: dict[str, EndpointMethod[..., object]] = {}
        self._broken = ""  # why no message can be handled; empty while they can
        self._contexts: dict[View, Context] = {}
        self._spawn_rank = Point(0, Extent((), ()))
        threading.Thread(target=self._run, name="monarch-actor", daemon=True).start()

    def put(self, channel: Channel, frame: Frame) -> None:
        """Queue a call; on the driver."""
        self._mailbox.append((channel, frame, cost_of(frame)))
        self._process.engine.wake_waiters()

    def stop(self) -> None:
        """Let the actor end after what is queued."""
        self._mailbox.append(None)
        self._process.engine.wake_waiters()

    def _has_mail(self) -> bool:
        return bool(self._mailbox)

    def _run(self) -> None:
        self._construct()
        engine = self._process.engine
        while not engine.closed:
            if not engine.wait(self._has_mail, None):
                return
            mail = self._mailbox.popleft()
            if mail is None:
                self._object = None
                self._broken = "it was stopped"
                continue
            channel, frame, cost = mail
            self._handle(channel, frame)
            # What the actor does not keep is freed before its sender may send more.
            del mail, frame
            channel.consumed(self._actor, cost)

    def _construct(self) -> None:
        try:
            self._try_construct()
        except SystemExit as leaving:
            self._process.exit(_exit_code(leaving))
        except BaseException as error:  # noqa: BLE001 user code; the caller is told
            traceback.print_exc()
            text = "".join(traceback.format_exception(error))
            self._broken = f"its constructor raised {type(error).__name__}: {error}\n{text}"

    def _try_construct(self) -> None:
        spawn = loads(self._spawn.body, self._spawn.buffers)
        assert isinstance(spawn, tuple)
        name, view, cls, args, kwargs = spawn
        info = self._process.info
        region = region_of(view)
        self._name = name
        self._spawn_rank = region.extent.point(region.rank_of(info.rank))
        self._where = f"actor {name}{self._spawn_rank} on {info.host or 'this host'}"
        threading.current_thread().name = f"actor {name}"
        entered(self._context(view))
        self._endpoints = endpoints_of(cls)
        self._object = cls(*args, **kwargs)
        self._spawn = Frame(self._spawn.kind)  # the arguments are the actor's now

    def _context(self, view: View) -> Context:
        known = self._contexts.get(view)
        if known is None:
            region = region_of(view)
            rank = region.extent.point(region.rank_of(self._process.info.rank))
            known = self._contexts[view] = Context(self._name, self._spawn_rank, rank, self._process.info)
        return known

    def _handle(self, channel: Channel, frame: Frame) -> None:
        where = self._where
        try:
            if self._broken:
                raise ActorDied(self._where, self._broken)
            method, view, args, kwargs = unpack_call(frame)
            where = f"{self._where}, endpoint {method}"
            entered(self._context(view))
            marked = self._endpoints.get(method)
            if marked is None:
                raise AttributeError(f"{self._name} has no endpoint {method!r}; mark the method with @endpoint")
            function: Callable[..., object] = marked.__get__(self._object, type(self._object))
            value = function(*args, **dict(kwargs))
            if asyncio.iscoroutine(value):
                value = self._process.run_coroutine(value)
        except SystemExit as leaving:
            self._process.exit(_exit_code(leaving))
        except BaseException as error:  # noqa: BLE001 user code; the caller is told
            if frame.reply:
                self._process.reply_failure(channel, frame.reply, where, error)
            else:
                print(f"{where} failed, and nobody waits for its answer:", file=sys.stderr)
                traceback.print_exc()
        else:
            if frame.reply:
                self._process.reply(channel, frame.reply, value)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    return leaving.code if isinstance(leaving.code, int) else 1
