from __future__ import annotations

from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.views.picture import draw
from monarch_hpc.wire.tables.calls import PROGRAM_MESH, ActorSeen, ProcCalls, RunningCall, Scene, SentCall, Wait


class Tale:
    """Reports of processes, built call by call."""

    def __init__(self) -> None:
        self.procs: dict[str, ProcCalls] = {}
        self._number = 0
        self.add("p", mesh=PROGRAM_MESH, actors=())

    def add(self, name: str, *, mesh: int = 1, state: str = "ready", cause: str = "", actors: tuple[str, ...]) -> None:
        """Add a process whose incarnation is its name, with actors whose numbers are their names."""
        seen = [ActorSeen(actor, actor, 0, "ready", "", 1.0) for actor in actors]
        self.procs[name] = ProcCalls(
            "run", mesh, len(self.procs) - 1, "host", 1, state, cause, Scene("", name, seen, [], [], [], 0, [])
        )

    def call(
        self,
        caller: str,
        actor: str,
        target: str,
        callee: str,
        *,
        runs: bool = True,
        waits: bool = True,
        age_s: float = 9.0,
    ) -> None:
        """Add an unanswered call."""
        self._number += 1
        number = self._number
        self.procs[caller].scene.sent.append(SentCall(number, actor, 1, target, "host", callee, callee, "do", age_s))
        if runs:
            self.procs[target].scene.running.append(RunningCall(callee, "do", number, caller, "host", age_s, 0.0))
        if waits:
            self.procs[caller].scene.waits.append(Wait(actor, [number], 1, "", age_s))


def test_who_runs_for_whom_and_who_waits() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    tale.add("y", actors=("b", "idle"))
    tale.call("p", "0", "x", "a")
    tale.call("x", "a", "y", "b")
    tale.call("p", "0", "y", "b", runs=False, waits=False)
    picture = draw(list(tale.procs.values()))
    told = [(row.actor, row.state, row.endpoint, row.caller, row.waits_for, row.num_queued) for row in picture.rows]
    assert told == [
        ("program", "waiting", "", "", "a[0].do", 0),
        ("a[0]", "waiting", "do", "program on host", "b[0].do", 0),
        ("b[0]", "running", "do", "a[0]", "", 1),
        ("idle[0]", "idle", "", "", "", 0),
    ]
    assert picture.deadlocks == []


def test_two_actors_that_wait_for_each_other() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    tale.add("y", actors=("b",))
    tale.call("p", "0", "x", "a")
    tale.call("x", "a", "y", "b")
    tale.call("y", "b", "x", "a", runs=False)
    picture = draw(list(tale.procs.values()))
    assert sorted(picture.deadlocks[0]) == ["a[0]", "b[0]"]
    assert len(picture.deadlocks) == 1


def test_an_actor_that_waits_for_itself() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    tale.call("p", "0", "x", "a")
    tale.call("x", "a", "x", "a", runs=False)
    assert draw(list(tale.procs.values())).deadlocks == [["a[0]"]]


def test_what_only_looks_like_a_deadlock() -> None:
    tale = Tale()
    tale.add("x", actors=("a", "c"))
    tale.add("y", actors=("b", "d"))
    tale.call("x", "a", "y", "b")
    tale.call("y", "b", "x", "a")  # it runs: its endpoint is concurrent
    tale.call("x", "c", "y", "d")
    tale.call("y", "d", "x", "c", runs=False, age_s=0.1)  # in flight a moment ago
    assert draw(list(tale.procs.values())).deadlocks == []


def test_nobody_waits_for_the_dead_for_ever() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    tale.add("y", state="ended", cause="signal 9 (SIGKILL)", actors=("b",))
    tale.call("x", "a", "y", "b")
    tale.call("y", "b", "x", "a", runs=False)
    picture = draw(list(tale.procs.values()))
    assert picture.deadlocks == []
    assert picture.rows[-1].state == "dead: signal 9 (SIGKILL)"
    assert picture.rows[-1].endpoint == "do"


def test_rings_that_share_no_actor_are_all_found() -> None:
    tale = Tale()
    names = [f"a{number}" for number in range(7)]
    tale.add("x", actors=tuple(names))
    for one, other in (
        ("a0", "a1"),
        ("a1", "a2"),
        ("a2", "a0"),
        ("a3", "a4"),
        ("a4", "a3"),
        ("a5", "a0"),
        ("a6", "a5"),
    ):
        tale.call("x", one, "x", other, runs=False)
    rings = sorted(sorted(ring) for ring in draw(list(tale.procs.values())).deadlocks)
    assert rings == [["a0[0]", "a1[0]", "a2[0]"], ["a3[0]", "a4[0]"]]


def test_a_program_that_says_nothing_is_named_by_its_host() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    tale.call("p", "0", "x", "a")
    del tale.procs["p"]
    (row,) = draw(list(tale.procs.values())).rows
    assert row.caller == "an unknown process on host"


def test_states_and_problems() -> None:
    tale = Tale()
    tale.add("x", state="stopped", actors=("a",))
    tale.add("y", state="starting", actors=())
    tale.procs["y"] = ProcCalls(
        "run", 1, 1, "host", 1, "starting", "", Scene("it has not recorded anything yet", "", [], [], [], [], 0, [])
    )
    picture = draw([*tale.procs.values(), tale.procs["x"]])
    assert [(row.actor, row.proc, row.state) for row in picture.rows] == [
        ("program", "host", "idle"),
        ("a[0]", "r0 host", "stopped by a signal"),
        ("", "r1 host", "starting"),
    ]
    assert picture.problems == []


def test_many_targets_are_counted() -> None:
    tale = Tale()
    tale.add("x", actors=tuple(f"a{number}" for number in range(5)))
    for number in range(5):
        tale.call("p", "0", "x", f"a{number}", waits=False)
    tale.procs["p"].scene.waits.append(Wait("0", [1, 2, 3, 4, 5], 70, "", 3.0))
    tale.procs["x"].scene.waits.append(Wait("a1", [], 0, "a message to a port", 0.0))
    rows = draw(list(tale.procs.values())).rows
    assert rows[0].waits_for == "a0[0].do, a1[0].do, a2[0].do and 67 more"
    assert rows[2].waits_for == "a message to a port"


def cast(tale: Tale, caller: str, actor: str, running: dict[str, str], age_s: float = 9.0) -> None:
    """Add a cast that runs in the actors *running*, by process; its number equals that of a direct call."""
    number = CAST | 1
    tale.procs[caller].scene.sent.append(SentCall(number, actor, 32, "", "", "squad", "squad", "do", age_s))
    tale.procs[caller].scene.waits.append(Wait(actor, [number], 1, "", age_s))
    for target, callee in running.items():
        tale.procs[target].scene.running.append(RunningCall(callee, "do", number, caller, "host", age_s, 0.0))


def test_who_waits_in_a_cast_waits_for_those_that_run_it() -> None:
    tale = Tale()
    for number in range(5):
        tale.add(f"x{number}", actors=(f"a{number}",))
    tale.call("p", "0", "x0", "a0", runs=False, waits=False)  # number 1, too
    cast(tale, "p", "0", {f"x{number}": f"a{number}" for number in range(1, 5)})
    rows = draw(list(tale.procs.values())).rows
    assert (rows[0].state, rows[0].waits_for) == ("waiting", "a1[0].do, a2[0].do, a3[0].do and 1 more")
    assert [(row.state, row.caller, row.num_queued) for row in rows[1:3]] == [
        ("idle", "", 1),
        ("running", "program on host", 0),
    ]


def test_a_cast_that_no_rank_runs() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    cast(tale, "p", "0", {})
    assert draw(list(tale.procs.values())).rows[0].waits_for == "squad.do of 32 ranks, which none runs"


def test_a_deadlock_through_a_cast() -> None:
    tale = Tale()
    tale.add("x", actors=("a",))
    tale.add("y", actors=("b",))
    cast(tale, "x", "a", {"y": "b"})
    assert draw(list(tale.procs.values())).deadlocks == []
    tale.call("y", "b", "x", "a", runs=False)
    assert draw(list(tale.procs.values())).deadlocks == [["a[0]", "b[0]"]]
