"""A program ends its procs and gives its hosts back."""

from __future__ import annotations

from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.mesh.program.controller import Controller
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Guest(Actor):
    """An actor that answers."""

    @endpoint
    def ping(self) -> None: ...


def test_hosts_end_their_procs_and_serve_on_and_are_shut_down_at_last() -> None:
    with controlled(load().config, num_hosts=2) as hosts:
        first = hosts.spawn_procs()
        settle(first)
        hosts.stop().get(_PATIENCE_S)
        assert not any(Path(f"/proc/{proc.pid}").exists() for proc in first.procs)
        with hosts:
            second = hosts.spawn_procs()
            assert len(second.spawn("guest", Guest).ping.call().get(_PATIENCE_S)) == 2
        assert not any(Path(f"/proc/{proc.pid}").exists() for proc in second.procs)
        # The next use attaches the program again.
        with monarch_hpc.hosts().spawn_procs() as third:
            assert len(third) == 2


def test_a_closed_program_holds_no_memory_of_its_records() -> None:
    with controlled(load().config, num_hosts=1) as hosts:
        procs = hosts.spawn_procs()
        settle(procs)
        closed = Controller.instance()
        guests = procs.spawn("guest", Guest)
        guests.ping.call().get(_PATIENCE_S)
        assert b"guest" in closed.recorder.memory[:]
        closed.close()
        assert b"guest" not in closed.recorder.memory[:]
        with pytest.raises(ActorDied, match="its allocation has ended"):
            guests.ping.call().get(_PATIENCE_S)
        Controller.close_any()
