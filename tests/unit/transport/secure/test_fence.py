"""The fence refuses lost processes and earlier controllers, and nothing else."""

from __future__ import annotations

from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.secure.fence import Fence


def peer(role: Role, incarnation: int, epoch: int = 0) -> Peer:
    return Peer(role, "n1", incarnation, epoch, "3.11.2", "0.1.0", "tcp://10.0.0.1:1")


def test_one_life_is_barred_for_good_and_the_first_reason_stays() -> None:
    fence = Fence(Role.AGENT)
    fence.bar(7, "no heartbeat for 15.0 s")
    fence.bar(7, "the connection ended")
    assert fence.objection(peer(Role.AGENT, 7)) == "it was declared lost: no heartbeat for 15.0 s"
    assert fence.barred(7) == "no heartbeat for 15.0 s"
    assert fence.objection(peer(Role.AGENT, 8)) == fence.barred(8) == ""


def test_a_proc_obeys_the_latest_controller_only() -> None:
    fence = Fence(Role.PROC)
    assert fence.objection(peer(Role.CONTROLLER, 1, epoch=3)) == ""
    assert fence.admit(peer(Role.CONTROLLER, 1, epoch=3))
    assert not fence.admit(peer(Role.CONTROLLER, 2, epoch=3))  # another program of the same run
    assert fence.objection(peer(Role.CONTROLLER, 2, epoch=3)) == ""
    assert fence.admit(peer(Role.CONTROLLER, 4, epoch=5))
    assert fence.objection(peer(Role.CONTROLLER, 1, epoch=3)) == (
        "controller 5 has taken over the run from controller 3"
    )
    assert not fence.admit(peer(Role.PROC, 9, epoch=0))
    assert fence.objection(peer(Role.PROC, 9, epoch=0)) == ""


def test_an_agent_serves_controllers_of_many_runs() -> None:
    fence = Fence(Role.AGENT)
    assert not fence.admit(peer(Role.CONTROLLER, 1, epoch=5))
    assert fence.objection(peer(Role.CONTROLLER, 2, epoch=3)) == ""


def test_a_kept_proc_serves_the_controllers_of_many_runs() -> None:
    fence = Fence(Role.PROC)
    assert fence.admit(peer(Role.CONTROLLER, 4, epoch=5))
    fence.accept_all_runs()
    assert not fence.admit(peer(Role.CONTROLLER, 6, epoch=7))
    assert fence.objection(peer(Role.CONTROLLER, 1, epoch=3)) == ""
    fence.bar(1, "the connection ended")
    assert fence.objection(peer(Role.CONTROLLER, 1, epoch=3)) == "it was declared lost: the connection ended"
