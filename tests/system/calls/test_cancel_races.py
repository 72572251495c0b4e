"""A call that is cancelled after its actor has seen it in the mailbox, but before it takes it: the actor retries."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest

import monarch_hpc
from monarch_hpc import Actor, ProcMesh, endpoint
from monarch_hpc.actor.cell.cancellation import Mail
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0

_gates: dict[str, threading.Event] = {}


def gate(name: str) -> threading.Event:
    """Return a named event of this process."""
    return _gates.setdefault(name, threading.Event())


class LateMailbox(deque[Mail]):
    """The thread that is about to take a message takes it only after another thread has removed it; once."""

    late = True

    def __bool__(self) -> bool:
        seen = len(self) > 0
        if seen and self.late and sys._getframe(1).f_code.co_name == "work":
            self.late = False
            gate("saw").set()
            wait_until("the message is taken away", lambda: not len(self), _PATIENCE_S)
            gate("reaches").set()
        return seen


class Dawdler(Actor):
    @endpoint
    def note(self, text: str) -> str:
        return text

    @endpoint
    def dawdle(self) -> None:
        """See the next message, but take it only after another thread has removed it."""
        cell = current_runtime().actors.cells.get(monarch_hpc.context().actor)
        assert cell is not None
        cell._mailbox = cell._cancellations._mailbox = cell._end._mailbox = LateMailbox()


class Watcher(Actor):
    @endpoint
    def until(self, name: str) -> None:
        assert gate(name).wait(_PATIENCE_S)


@pytest.fixture(scope="module")
def procs(shared_hosts: SharedHosts) -> Iterator[ProcMesh]:
    with shared_hosts.controlled(1) as hosts, hosts.slice(hosts=0).spawn_procs() as procs:
        settle(procs)
        yield procs


@pytest.fixture(params=["remote", "local"])
def place(request: pytest.FixtureRequest, procs: ProcMesh) -> ProcMesh:
    """A proc of another process, or of this one."""
    return procs if request.param == "remote" else monarch_hpc.this_proc()


def test_a_call_may_go_while_its_actor_reaches_for_it(place: ProcMesh) -> None:
    dawdler, watcher = place.spawn("dawdler", Dawdler), place.spawn("watcher", Watcher)
    dawdler.dawdle.call_one().get(_PATIENCE_S)
    call = dawdler.note.call_one("gone")
    watcher.until.call_one("saw").get(_PATIENCE_S)
    assert call.cancel()
    watcher.until.call_one("reaches").get(_PATIENCE_S)
    assert dawdler.note.call_one("next").get(_PATIENCE_S) == "next"
    for mesh in (dawdler, watcher):
        mesh.stop().get(_PATIENCE_S)
