"""The messages that describe a program's run to the head of a later term."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from monarch_hpc.mesh.program.procs.fleet import Fleet
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import SpawnProcs
from monarch_hpc.wire.control.runs import OpenRun, Recording

__all__ = ["Unsent", "opening", "retell"]


class Unsent:
    """Messages for the head of the next term, while there is none. Calls between procs and the program go on."""

    def __init__(self) -> None:
        self._messages: list[Message] | None = None

    def begin(self) -> None:
        """Keep messages from now on."""
        self._messages = []

    def keep(self, message: Message) -> bool:
        """Keep a message; False if there is a head that it can be sent to."""
        if self._messages is None:
            return False
        self._messages.append(message)
        return True

    def end(self) -> list[Message]:
        """Keep no more messages; return those that were kept."""
        kept, self._messages = self._messages or [], None
        return kept


def opening(run: str, owner: bool, on_loss: str, hold_s: float, takes: int) -> OpenRun:
    """Return the request of this program to open its run, to join it, or to take it over; see `OpenRun`."""
    title, host = " ".join(sys.argv) or "python", os.uname().nodename
    return OpenRun(run, title, host, os.getpid(), owner, on_loss=on_loss, hold_s=hold_s, takes=takes)


def retell(fleet: Fleet, opened: OpenRun, recording: Recording, kept: Sequence[Message]) -> list[Message]:
    """Return all messages that the head of a later term needs, in their order.

    A mesh that was starting when the head was lost is ordered again: it is unknown which hosts have the first order.

    Args:
        opened: the request to open the run, without its meshes.
        kept: messages that could not be sent to the head before.
    """
    unsent = {message.mesh for message in kept if isinstance(message, SpawnProcs) and not message.restarts}
    meshes = [[number, *hosts] for number, hosts in fleet.meshes() if number not in unsent]
    again = [order for order in fleet.orders_in_doubt() if order.mesh not in unsent]
    return [replace(opened, meshes=meshes), recording, *again, *fleet.stops(), *kept]
