"""Dead procs on their way back: every attempt, every failure, every late report, as a machine without processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.mesh.healing.revivals import Healing, Revivals, Work
from monarch_hpc.supervision.policy import Restart
from monarch_hpc.testing import ManualClock

PROCS = {rank: ProcRef(7, rank, f"n{rank}", rank, 100 + rank, 1000 + rank, ()) for rank in range(3)}
POLICY = Restart("on-failure", max_restarts=2, window_s=60, backoff_s=(1, 8))


class World:
    """Revivals whose work is written down."""

    def __init__(self, policy: Restart | None = None) -> None:
        self.clock = ManualClock()
        self.did: list[object] = []
        self.prepared: dict[int, Callable[[str], None]] = {}
        self.cut: set[int] = set()
        self.refused = ""
        self.held: list[Callable[[], None]] | None = None
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.revivals = Revivals(
            Work(
                clock=self.clock,
                later=lambda delay_s, callback: self.timers.append((self.clock() + delay_s, callback)),
                start=self._start,
                prepare=lambda proc, done: self.prepared.update({proc.rank: done}),
                publish=self._publish,
                end=lambda proc: self.did.append(("end", proc.rank, proc.restarts)),
                failed=lambda proc, cause, told: self.did.append(("failed", proc.rank, cause, told)),
                reachable=lambda proc: proc.rank not in self.cut,
            ),
            start_s=65.0,
            report_s=5.0,
        )
        self.revivals.watch(7, policy)

    def _start(self, proc: ProcRef, restarts: int) -> None:
        if self.refused:
            raise OSError(self.refused)
        self.did.append(("start", proc.rank, restarts))

    def _publish(self, proc: ProcRef, done: Callable[[], None]) -> None:
        self.did.append(("publish", proc.rank, proc.restarts))
        if self.held is None:
            done()
        else:
            self.held.append(done)

    def did_now(self) -> list[object]:
        """What was done since the last question."""
        did, self.did = self.did, []
        return did

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)
        while due := [timer for timer in self.timers if timer[0] <= self.clock()]:
            self.timers.remove(due[0])
            due[0][1]()

    def heal(self, ranks: list[int], *, respawn: bool = True) -> list[Healing]:
        """Ask for healing; the list gets its outcome."""
        healed: list[Healing] = []
        self.revivals.heal(7, [PROCS[rank] for rank in ranks], healed.append, 100.0, respawn=respawn)
        return healed

    def come_back(self, rank: int, restarts: int, problem: str = "") -> ProcRef:
        """Let an ordered proc start, be reached, and be prepared."""
        proc = replace(PROCS[rank], incarnation=2000 + rank + 100 * restarts, restarts=restarts)
        assert self.revivals.expects(proc)
        self.revivals.on_reached(proc)
        self.prepared.pop(rank)(problem)
        return proc


def test_a_dead_proc_is_healed_on_request_only() -> None:
    world = World()
    assert world.revivals.on_death(PROCS[1], "signal 9", last_lines=["bye"]) == (
        "signal 9; it wrote last:\n    bye",
        False,
    )
    assert world.did_now() == []
    healed = world.heal([0, 1])
    assert world.did_now() == [("start", 1, 1)] and not healed
    world.come_back(1, 1)
    assert world.did_now() == [("publish", 1, 1)]
    assert healed == [Healing({1: "signal 9"}, {})]
    assert world.heal([0, 1, 2]) == [Healing({}, {})]


def test_without_respawn_the_dead_are_named() -> None:
    world = World()
    world.revivals.on_death(PROCS[1], "signal 9")
    assert world.heal([0, 1], respawn=False) == [Healing({}, {1: ("n1", "signal 9", "")})]
    assert world.did_now() == []


def test_a_policy_starts_procs_again_until_they_loop() -> None:
    world = World(POLICY)
    assert world.revivals.on_death(PROCS[1], "exit code 1", last_lines=["a"]) == (
        "exit code 1; it wrote last:\n    a",
        True,
    )
    assert world.did_now() == []
    world.wait(1.0)
    assert world.did_now() == [("start", 1, 1)]
    second = world.come_back(1, 1)
    assert world.did_now() == [("publish", 1, 1)]
    assert world.revivals.on_death(second, "exit code 2", last_lines=["b"])[1]
    world.wait(1.9)
    assert world.did_now() == []
    world.wait(0.1)
    assert world.did_now() == [("start", 1, 2)]
    third = world.come_back(1, 2)
    cause, again = world.revivals.on_death(third, "exit code 3", last_lines=["c"])
    assert not again
    assert cause == (
        "exit code 3; it was started again 2 times within 60 s, as its restart policy allows; it wrote last:"
        "\n    a\n    b\n    c"
    )
    world.wait(1000.0)
    assert world.did_now() == [("publish", 1, 2)]  # the death of a living proc is reported by who asked

    # A request brings it back, and the policy counts anew.
    healed = world.heal([1])
    assert world.did_now() == [("start", 1, 3)]
    world.come_back(1, 3)
    assert healed == [Healing({1: "exit code 3"}, {})]


def test_an_attempt_that_fails_counts_and_the_last_one_is_reported() -> None:
    world = World(POLICY)
    world.revivals.on_death(PROCS[1], "signal 9")
    world.wait(1.0)
    second = world.come_back(1, 1, "its constructor raised")
    assert world.did_now() == [("start", 1, 1), ("end", 1, 1)]
    assert world.revivals.on_death(second, "exit code 1") == ("its constructor raised", True)
    world.wait(2.0)
    world.revivals.on_failed(7, 1, "no memory", ["line"])
    reason = "it was started again 2 times within 60 s, as its restart policy allows; it wrote last:\n    line"
    assert world.did_now() == [("start", 1, 2), ("failed", 1, f"no memory; {reason}", False)]
    world.wait(1000.0)
    assert world.did_now() == []


def test_who_waits_is_told_of_a_failure_and_nobody_else() -> None:
    world = World()
    world.revivals.on_death(PROCS[1], "signal 9")
    healed = world.heal([1])
    world.revivals.on_failed(7, 1, "no memory")
    assert healed == [Healing({}, {1: ("n1", "signal 9", "no memory")})]
    assert world.did_now() == [("start", 1, 1), ("failed", 1, "no memory", True)]
    again = world.heal([1])
    assert world.did_now() == [("start", 1, 2)]
    world.come_back(1, 2)
    assert again == [Healing({1: "signal 9"}, {})]


def test_requests_wait_for_what_a_policy_does() -> None:
    world = World(POLICY)
    world.revivals.on_death(PROCS[1], "signal 9")
    first, second = world.heal([1]), world.heal([1, 2], respawn=False)
    assert world.did_now() == []
    world.wait(1.0)
    world.come_back(1, 1)
    assert first == second == [Healing({1: "signal 9"}, {})]


@pytest.mark.parametrize("succeeded", [True, False])
def test_the_end_of_work_is_no_failure(succeeded: bool) -> None:
    world = World(POLICY)
    assert world.revivals.on_death(PROCS[1], "exit code 0", succeeded=succeeded)[1] is not succeeded


def test_a_lost_host_is_left_to_requests() -> None:
    world = World(POLICY)
    assert world.revivals.on_death(PROCS[1], "host n1 is lost", final=True) == ("host n1 is lost", False)
    world.revivals.on_death(PROCS[2], "signal 9")
    world.wait(1.0)
    assert world.did_now() == [("start", 2, 1)]
    # The policy tries again, and is refused by the head.
    world.revivals.on_host_lost(2, "host n2 is lost", lambda proc: proc.host_rank)
    world.wait(2.0)
    assert world.did_now() == [("start", 2, 2)]
    world.revivals.on_failed(7, 2, "n2 has left")
    assert [entry[:2] for entry in world.did_now() if isinstance(entry, tuple)] == [("failed", 2)]


def test_late_reports_of_earlier_attempts_change_nothing() -> None:
    world = World()
    world.revivals.on_death(PROCS[1], "signal 9")
    healed = world.heal([1])
    late = replace(PROCS[1], incarnation=2222, restarts=1)
    world.wait(65.0)
    assert healed == [Healing({}, {1: ("n1", "signal 9", "its agent did not report within 65 s")})]
    assert not world.revivals.expects(late)
    again = world.heal([1])
    assert not world.revivals.expects(late)
    world.revivals.on_reached(late)
    assert world.revivals.on_death(late, "signal 15") == ("signal 15", False)
    world.come_back(1, 2)
    assert again == [Healing({1: "signal 9"}, {})]


def test_a_proc_that_dies_while_it_is_prepared_is_not_published() -> None:
    world = World()
    world.revivals.on_death(PROCS[1], "signal 9")
    healed = world.heal([1])
    second = replace(PROCS[1], incarnation=2222, restarts=1)
    world.revivals.on_reached(second)
    done = world.prepared.pop(1)
    world.revivals.on_death(second, "signal 11")
    assert healed == [Healing({}, {1: ("n1", "signal 9", "signal 11")})]
    done("")
    assert world.did_now() == [("start", 1, 1), ("failed", 1, "signal 11", True)]


def test_a_death_that_is_not_reported_yet_is_waited_for() -> None:
    world = World()
    world.cut = {1, 2}
    healed = world.heal([0, 1, 2])
    world.revivals.on_death(PROCS[1], "signal 9")
    assert world.did_now() == [("start", 1, 1)]
    world.come_back(1, 1)
    assert not healed
    world.wait(5.0)
    assert healed == [
        Healing({1: "signal 9"}, {2: ("n2", "the connection to it is lost, and nobody reports its death", "")})
    ]


def test_a_request_ends_in_time_and_the_proc_may_come_later() -> None:
    world = World()
    world.revivals.on_death(PROCS[1], "signal 9")
    healed = world.heal([1])
    second = replace(PROCS[1], incarnation=2222, restarts=1)
    world.revivals.on_reached(second)
    world.wait(100.0)
    (outcome,) = healed
    assert outcome.dead == {1: ("n1", "signal 9", "it was not back within 100 s: its actors are made again")}
    world.prepared.pop(1)("")
    assert ("publish", 1, 1) in world.did_now() and len(healed) == 1


def test_a_stopped_mesh_is_forgotten() -> None:
    world = World(POLICY)
    world.revivals.on_death(PROCS[1], "signal 9")
    world.cut = {2}
    healed = world.heal([1, 2])
    world.revivals.forget(7, "it was stopped")
    world.wait(1000.0)
    (outcome,) = healed
    assert outcome.dead[1] == ("n1", "signal 9", "it was stopped") and 2 in outcome.dead
    assert world.did_now() == []
    assert world.revivals.on_death(PROCS[0], "signal 9") == ("signal 9", False)
    assert world.heal([0]) == [Healing({}, {})]


def test_an_order_that_cannot_be_sent_is_a_failed_attempt() -> None:
    world = World()
    world.refused = "the head is gone"
    world.revivals.on_death(PROCS[1], "signal 9")
    assert world.heal([1]) == [Healing({}, {1: ("n1", "signal 9", "the request could not be sent: the head is gone")})]


def test_a_request_ends_when_all_processes_know_the_new_proc() -> None:
    world = World()
    world.held = []
    world.revivals.on_death(PROCS[1], "signal 9")
    healed = world.heal([1])
    second = world.come_back(1, 1)
    assert world.did_now()[-1] == ("publish", 1, 1) and not healed
    world.revivals.on_death(second, "signal 11")  # before all of them do
    world.held.pop()()
    assert healed == [Healing({1: "signal 9"}, {})]
    world.held = None
    again = world.heal([1])
    world.come_back(1, 2)
    assert again == [Healing({1: "signal 11"}, {})]
