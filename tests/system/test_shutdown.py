"""How a program ends its procs and gives its hosts back."""

from __future__ import annotations

from pathlib import Path

import monarch_hpc
from monarch_hpc import Actor, endpoint
from monarch_hpc.config.load import load
from tests.system.controlling import controlled, settle

_PATIENCE_S = 30.0


class Guest(Actor):
    """Answers."""

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
        # The program is attached again at its next use.
        with monarch_hpc.hosts().spawn_procs() as third:
            assert len(third) == 2
