"""A cast for a proc that has ended is answered by its cause, even when another proc has its mesh and rank by then."""

from __future__ import annotations

import pytest

from monarch_hpc.testing.simulated_allocation import SimulatedAllocation
from monarch_hpc.wire.casts import NoteKind


@pytest.mark.parametrize("host", [0, 1])
def test_a_cast_does_not_reach_the_proc_that_replaced_another(host: int) -> None:
    allocation = SimulatedAllocation(num_hosts=2, per_host=2, fanout=2)
    allocation.kill_proc(1)
    new = allocation.restart_proc(1, host)
    wanted = {0: NoteKind.RESULT, 1: NoteKind.DIED, 2: NoteKind.RESULT, 3: NoteKind.RESULT}
    first = allocation.cast()
    allocation.run()
    assert allocation.sender.answers[first] == wanted
    allocation.end_restarted(new)
    second = allocation.cast()
    allocation.run()
    assert allocation.sender.answers[second] == wanted
    assert allocation.procs[1].seen == new.seen == []
