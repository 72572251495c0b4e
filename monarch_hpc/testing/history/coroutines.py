"""Actors of coroutines that answer as `load.Answerer` does, and some that make children fail and wait to be told."""

from __future__ import annotations

import asyncio

from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.mesh.current import this_proc
from monarch_hpc.testing.history.checker import Finished, Judged, Told, Untold, token
from monarch_hpc.testing.history.load import Noting, hostile, note

__all__ = ["Guard", "Woven"]

_TOLD_S = 2.0
"""Time within which the failure of a child is reported to its actor; a stop waits as long for an endpoint in vain."""


class Woven(Noting):
    """Has coroutines only, so that its constructor and hooks run on its loop."""

    async def _answer(self, sender: str, number: int, pause_s: float, *, fails: bool) -> str:
        self._begin(sender, number)
        try:
            await asyncio.sleep(pause_s)
        finally:
            note(self.folder, Finished(self.me, sender, number))
        return hostile(number) if fails else token(sender, number)

    @endpoint
    async def plain(self, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False) -> str:
        """Answer from a coroutine that awaits nothing."""
        self._begin(sender, number)  # it awaits nothing
        note(self.folder, Finished(self.me, sender, number))
        return hostile(number) if fails else token(sender, number)

    @endpoint
    async def waiting(self, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False) -> str:
        """Answer from a coroutine."""
        return await self._answer(sender, number, pause_s, fails=fails)

    @concurrent_endpoint
    async def beside(self, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False) -> str:
        """Answer from a coroutine, beside others."""
        return await self._answer(sender, number, pause_s, fails=fails)

    @endpoint(explicit_response_port=True)
    async def later(
        self, port: ResponsePort, sender: str, number: int, data: bytes, pause_s: float, *, fails: bool = False
    ) -> None:
        """Answer by the port, after the endpoint has returned."""
        self._begin(sender, number)
        note(self.folder, Finished(self.me, sender, number))
        if fails:
            port.exception(ValueError(number))
        else:
            asyncio.get_running_loop().call_later(pause_s, port.send, token(sender, number))


class _Child(Actor):
    """Fails: in its constructor, or in a message."""

    def __init__(self, *, at_once: bool) -> None:
        if at_once:
            raise ValueError("born so")

    @endpoint
    def fail(self) -> None:
        """Fail."""
        raise ValueError("told so")


class Guard(Woven):
    """Answers some messages only when its hook has been told of the failure of a child."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, name)
        self._children: dict[str, asyncio.Event] = {}

    async def _answer(self, sender: str, number: int, pause_s: float, *, fails: bool) -> str:
        if not pause_s or fails:
            return await super()._answer(sender, number, pause_s, fails=fails)
        self._begin(sender, number)
        try:
            told = self._children[token(sender, number)] = asyncio.Event()
            child = this_proc().spawn(token(sender, number), _Child, at_once=bool(number % 2))
            child.fail.broadcast()
            try:
                await asyncio.wait_for(told.wait(), _TOLD_S)
            except TimeoutError:
                note(self.folder, Untold(self.me, sender, number))
        finally:
            note(self.folder, Finished(self.me, sender, number))
        return token(sender, number)

    async def __supervise__(self, failure: MeshFailure) -> bool:
        sender, _, number = failure.mesh_name.rpartition("#")
        note(self.folder, Told(self.me, sender, int(number)))
        try:
            await asyncio.sleep(0.001)
            self._children.pop(failure.mesh_name).set()
        finally:
            note(self.folder, Judged(self.me, sender, int(number)))
        return True
