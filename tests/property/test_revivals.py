"""Dead procs on their way back, whatever happens: one attempt at a time, each life once; every request ends once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.mesh.healing.revivals import Healing, Revivals, Work
from monarch_hpc.supervision.policy import Restart

_NUM = 2
_START_S, _REPORT_S, _HEAL_S = 65.0, 5.0, 40.0
_POLICIES = [
    None,
    Restart("always", max_restarts=2, window_s=50, backoff_s=(1, 4)),
    Restart("on-failure", 1, 10, (0, 0)),
]
_WHAT = [
    "die",
    "end well",
    "lose host",
    "ready",
    "reach",
    "prepare",
    "spoil",
    "fail",
    "late",
    "heal",
    "look",
    "cut",
    "wait",
]


class World:
    """Processes of two ranks as the revivals cause them, and what the revivals may rely on."""

    def __init__(self, policy: Restart | None) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.current = {rank: ProcRef(7, rank, "n", 0, 1, rank + 1, ()) for rank in range(_NUM)}
        self.alive = dict(self.current)
        self.ordered: dict[int, int] = {}  # rank -> life whose attempt runs
        self.last = dict.fromkeys(range(_NUM), 0)
        self.reached: dict[int, ProcRef] = {}
        self.prepare: dict[int, Callable[[str], None]] = {}
        self.cut: set[int] = set()
        self.asked: list[list[Healing]] = []
        self.revivals = Revivals(
            Work(
                clock=lambda: self.now_s,
                later=lambda delay_s, callback: self.timers.append((self.now_s + delay_s, callback)),
                start=self.start,
                prepare=lambda proc, done: self.prepare.update({proc.rank: done}),
                publish=self.publish,
                end=self.end,
                failed=lambda proc, _cause, _told: self.is_dead(proc.rank),
                reachable=lambda proc: self.alive.get(proc.rank) == proc and proc.rank not in self.cut,
            ),
            _START_S,
            _REPORT_S,
        )
        self.revivals.watch(7, policy)

    def start(self, proc: ProcRef, restarts: int) -> None:
        assert proc.rank not in self.alive, "a living proc is replaced"
        assert restarts > self.last[proc.rank], "a life is ordered twice"
        self.last[proc.rank] = self.ordered[proc.rank] = restarts
        self.forget(proc.rank)

    def publish(self, proc: ProcRef, done: Callable[[], None]) -> None:
        assert self.reached.pop(proc.rank) == proc and self.ordered.pop(proc.rank) == proc.restarts
        self.current[proc.rank] = self.alive[proc.rank] = proc
        done()

    def end(self, proc: ProcRef) -> None:
        self.revivals.on_death(self.forget(proc.rank), "exit code 1")

    def is_dead(self, rank: int) -> None:
        assert rank not in self.alive

    def forget(self, rank: int) -> ProcRef:
        """An attempt is over; return the proc that it has made, or the last one."""
        self.prepare.pop(rank, None)
        return self.reached.pop(rank, self.current[rank])

    def step(self, what: str, rank: int, seconds: float) -> None:
        """Let one thing happen, if it can."""
        revivals, life = self.revivals, self.ordered.get(rank)
        new = replace(self.current[rank], restarts=life or 0, incarnation=1000 * (life or 0) + rank)
        match what:
            case "die" | "end well" | "lose host" if rank in self.alive:
                self.cut.discard(rank)
                proc = self.alive.pop(rank)
                revivals.on_death(proc, what, succeeded=what == "end well", final=what == "lose host")
            case "die" | "lose host" if rank in self.reached:
                revivals.on_death(self.forget(rank), what, final=what == "lose host")
            case "ready" | "reach" if life is not None and rank not in self.reached and revivals.expects(new):
                self.reached[rank] = new
                revivals.on_reached(new)
                assert rank in self.prepare
            case "prepare" | "spoil" if rank in self.prepare:
                self.prepare.pop(rank)("" if what == "prepare" else "it is spoilt")
            case "fail" if life is not None and rank not in self.reached:
                revivals.on_failed(7, rank, "it does not start")
            case "late" if life is not None and life > 1:
                assert not revivals.expects(replace(new, restarts=life - 1))
                revivals.on_reached(replace(new, restarts=life - 1))
            case "heal" | "look":
                healed: list[Healing] = []
                self.asked.append(healed)
                revivals.heal(7, list(self.current.values()), healed.append, _HEAL_S, respawn=what == "heal")
            case "cut":
                self.cut.add(rank)
            case "wait":
                self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        while due := sorted((timer for timer in self.timers if timer[0] <= until_s), key=lambda timer: timer[0])[:1]:
            self.timers.remove(due[0])
            self.now_s = max(self.now_s, due[0][0])
            due[0][1]()
        self.now_s = until_s


@given(
    st.sampled_from(_POLICIES),
    st.lists(
        st.tuples(st.sampled_from(_WHAT), st.integers(0, _NUM - 1), st.sampled_from([0.5, 5.0, 70.0])), max_size=60
    ),
)
def test_every_request_ends_and_no_life_is_lived_twice(
    policy: Restart | None, steps: list[tuple[str, int, float]]
) -> None:
    world = World(policy)
    for what, rank, seconds in steps:
        world.step(what, rank, seconds)
        assert all(len(healed) <= 1 for healed in world.asked)
    world.wait(_HEAL_S + _REPORT_S)
    for healed in world.asked:
        (outcome,) = healed
        assert not outcome.revived.keys() & outcome.dead.keys()
    # Whatever has happened, a request with nothing in its way brings all back.
    world.cut.clear()
    world.wait(1000.0)
    world.step("heal", 0, 0.0)
    for _ in range(3):
        for rank in range(_NUM):
            world.step("reach", rank, 0.0)
            world.step("prepare", rank, 0.0)
        world.wait(5.0)  # a policy may be waiting for its next attempt
    assert world.asked[-1] and not world.asked[-1][0].dead
    assert world.alive == world.current
