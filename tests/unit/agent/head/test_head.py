from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.agent.head.events import Event
from monarch_hpc.agent.head.head import Head
from monarch_hpc.agent.head.hosts.losses import AskSlurm, no_answer
from monarch_hpc.agent.head.hosts.resignation import ResignWork
from monarch_hpc.agent.head.runs.runs import OpenObserver
from monarch_hpc.supervision import Liveness
from monarch_hpc.testing import ManualClock
from monarch_hpc.wire.control.allocation import (
    HostEnded,
    HostEntry,
    Join,
    Roster,
    ShutDown,
    ShutDownDone,
    Status,
    StatusReport,
)
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.control.procs import (
    ProcEnded,
    ProcLife,
    ProcReady,
    ProcsStopped,
    SpawnFailed,
    SpawnProcs,
    StopProcs,
)
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunClosed, RunLinks, RunOpened
from monarch_hpc.wire.proc_key import ProcKey

MAX_ANSWER_BYTES = 10_000


class Party:
    """One end of a link, on the far side of the head."""

    def __init__(self) -> None:
        self.backlogged = False
        self.fabric, self.why = "tcp", "agents use sockets"
        self.got: list[Message] = []
        self.closed = ""

    def send(self, message: Message) -> None:
        self.got.append(message)

    def close(self, reason: str) -> None:
        self.closed = reason

    def take(self) -> list[Message]:
        """Return the messages received since the last call."""
        got, self.got = self.got, []
        return got


class World:
    """A head with its agents, its clock, and the files that the head would write."""

    def __init__(self, num_hosts: int, ask_slurm: AskSlurm = no_answer, resign: ResignWork | None = None) -> None:
        self.clock = ManualClock()
        self.written: list[tuple[list[int], dict[int, str]]] = []
        self.ended = 0
        self.observer: OpenObserver = lambda _recording: None
        self.events: list[Event] = []
        self.head = Head(
            *(num_hosts, self.clock, self.clock.call_later, 5.0, self._changed, self._ended),
            lambda told: self.observer(told),
            MAX_ANSWER_BYTES,
            360.0,
            self.events.append,
            ask_slurm,
            resign,
        )
        self.agents = [Party() for _ in range(num_hosts)]

    def _changed(self, hosts: list[HostEntry], missing: dict[int, str]) -> None:
        self.written.append(([host.rank for host in hosts], missing))

    def _ended(self) -> None:
        self.ended += 1

    def join(self, *ranks: int, problem: str = "") -> None:
        for rank in ranks:
            self.head.on_join(self.agents[rank], Join(entry(rank), problem))

    def open(self, run: str, *, owner: bool = True) -> Party:
        client = Party()
        self.head.on_client(client, OpenRun(run, "train.py", "login", 7, owner))
        return client

    def take_all(self) -> list[list[Message]]:
        return [agent.take() for agent in self.agents]


def entry(rank: int) -> HostEntry:
    return HostEntry(
        rank, f"n{rank}", [f"tcp://10.1.0.{rank}:7"], 100 + rank, "3.11.7", "0.1.0", [0, 1], [], 1 << 30, {}
    )


def spawn(run: str, mesh: int, hosts: list[int], per_host: int = 1) -> SpawnProcs:
    first = [index * per_host for index in range(len(hosts))]
    return SpawnProcs(
        run, mesh, hosts, first, per_host, per_host * len(hosts), {}, [], [], "/", 0o022, "own-first", 60.0
    )


@pytest.fixture
def world() -> World:
    """Two hosts, both joined."""
    world = World(2)
    world.join(0, 1)
    world.take_all()
    return world


def test_the_roster_goes_out_when_all_are_there() -> None:
    world = World(2)
    world.join(1)
    assert (world.written, world.take_all()) == ([], [[], []])
    world.join(0)
    assert world.written == [([0, 1], {})]
    assert world.take_all() == [[Roster([entry(0), entry(1)], 2)]] * 2


def test_the_deadline_names_who_is_missing_and_late_ones_are_welcome() -> None:
    world = World(3)
    world.join(0)
    world.join(1, problem="cannot write")
    world.head.on_bootstrap_deadline()
    world.join(2)
    assert world.written == [
        ([0], {1: "cannot write", 2: "its agent did not report"}),
        ([0, 2], {1: "cannot write"}),
    ]


def test_a_deadline_that_changes_nothing_is_not_announced(world: World) -> None:
    world.head.on_bootstrap_deadline()
    assert (len(world.written), world.take_all()) == (1, [[], []])


def test_a_host_has_one_agent(world: World) -> None:
    second = Party()
    world.head.on_join(second, Join(entry(1), ""))
    problem = "host 1 has an agent already: process 101 on n1"
    assert (second.got, second.closed) == ([Refused("", problem)], problem)
    stranger = Party()
    world.head.on_join(stranger, Join(entry(2), ""))
    assert stranger.got == [Refused("", "there is no host 2 among 2")]
    # A new agent may join once the first is lost.
    world.head.on_agent_lost(world.agents[1], "gone")
    world.head.on_join(second, Join(entry(1), ""))
    assert world.written[-1] == ([0, 1], {})


def test_messages_find_their_way(world: World) -> None:
    one, two = world.open("1"), world.open("2")
    assert one.take() == [RunOpened("1", 1, 1, [entry(0), entry(1)])]
    assert two.take() == [RunOpened("2", 2, 2, [entry(0), entry(1)])]
    order = spawn("1", 9, [1])
    world.head.on_client(one, order)
    assert world.take_all() == [[], [order]]
    answers: list[Message] = [
        ProcReady(ProcKey("1", 9, 0, 1), 55, "77", ["tcp://10.1.0.1:8"]),
        Output(ProcKey("1", 9, 0, 1), "out", ["hello"], 0),
        ProcEnded(ProcKey("1", 9, 0, 1), False, "exit code 3", []),
    ]
    for answer in answers:
        world.head.on_agent(world.agents[1], answer)
    assert (one.take(), two.take()) == (answers, [])
    world.head.on_client(one, StopProcs("1", 9, [1], 1.0))
    assert world.take_all() == [[], [StopProcs("1", 9, [1], 1.0)]]
    world.head.on_agent(world.agents[1], ProcsStopped("1", 9, 1))
    # The mesh has ended: later messages about it have no receiver.
    world.head.on_agent(world.agents[1], Output(ProcKey("1", 9, 0, 1), "out", ["late"], 0))
    assert one.take() == [ProcsStopped("1", 9, 1)]


def test_whoever_takes_a_run_over_ends_the_tenure_of_all_who_were_there(world: World) -> None:
    one = world.open("1")
    program, two = Party(), Party()
    world.head.on_client(program, OpenRun("1", "train.py", "login", 8, False))
    assert program.take() == [RunOpened("1", 1, 2, [entry(0), entry(1)])]
    world.head.on_client(program, spawn("1", 9, [1]))
    world.take_all()
    world.head.on_client(two, OpenRun("1", "train.py", "login2", 7, True))
    assert two.take() == [RunOpened("1", 3, 3, [entry(0), entry(1)])]
    assert one.closed == program.closed == "another program has taken over run 1"
    assert (world.head.owns(one), world.head.owns(two)) == (False, True)
    # Their procs are stopped; the run stays open.
    world.head.on_client_lost(one, "we closed it")
    world.head.on_client_lost(program, "we closed it")
    assert world.take_all() == [[], [StopProcs("1", 9, [1], 5.0)]]
    later = Party()
    world.head.on_client(later, OpenRun("1", "train.py", "login2", 9, False))
    assert later.take() == [RunOpened("1", 3, 4, [entry(0), entry(1)])]


def test_orders_that_cannot_be_carried_out_fail_rank_by_rank(world: World) -> None:
    client = world.open("1")
    world.head.on_agent_lost(world.agents[1], "no heartbeat for 15.0 s")
    client.take()
    world.head.on_client(client, spawn("1", 1, [0, 1], 2))
    assert [(m.proc.rank, m.proc.host, m.cause) for m in client.take() if isinstance(m, SpawnFailed)] == [
        (2, 1, "the host is lost: no heartbeat for 15.0 s"),
        (3, 1, "the host is lost: no heartbeat for 15.0 s"),
    ]
    world.head.on_client(client, spawn("1", 1, [0]))
    world.head.on_client(client, spawn("2", 1, [0]))
    assert [m.cause for m in client.take() if isinstance(m, SpawnFailed)] == [
        "mesh 1 exists already in this run",
        "the run is over",
    ]
    world.head.on_client(client, StopProcs("1", 1, [0, 1], 1.0))
    assert client.take() == [ProcsStopped("1", 1, 1)]


def test_procs_that_replace_others_belong_to_the_same_mesh(world: World) -> None:
    client = world.open("1")
    world.head.on_client(client, spawn("1", 1, [0]))
    world.take_all()
    client.take()
    again = replace(spawn("1", 1, [1]), restarts=1)
    world.head.on_client(client, again)
    assert world.take_all() == [[], [again]] and client.take() == []
    world.head.on_client(client, replace(again, mesh=2))
    assert [m.cause for m in client.take() if isinstance(m, SpawnFailed)] == ["mesh 2 does not exist in this run"]
    world.head.on_client(client, StopProcs("1", 1, [0, 1], 1.0))
    assert world.take_all() == [[StopProcs("1", 1, [0, 1], 1.0)]] * 2


def test_a_lost_host_is_told_to_every_run(world: World) -> None:
    one, two = world.open("1"), world.open("2")
    one.take()
    two.take()
    world.head.on_agent_lost(world.agents[1], "the connection ended")
    assert one.take() == [HostEnded("1", 1, "the connection ended")]
    assert two.take() == [HostEnded("2", 1, "the connection ended")]
    assert world.open("3").take() == [RunOpened("3", 3, 3, [entry(0)])]


def test_a_closed_run_is_over_when_every_host_says_so(world: World) -> None:
    client = world.open("1")
    client.take()
    world.head.on_client(client, CloseRun("1", 0))
    assert world.take_all() == [[CloseRun("1", 0)]] * 2
    assert world.open("1").take() == [Refused("1", "run 1 is over", "OpenRun")]
    world.head.on_agent(world.agents[0], RunClosed("1"))
    assert client.take() == []
    world.head.on_agent(world.agents[1], RunClosed("1"))
    assert client.take() == [RunClosed("1")]
    # A closed run may be closed again, and opened again.
    world.head.on_client(client, CloseRun("1", 0))
    assert client.take() == [RunClosed("1")]
    assert isinstance(world.open("1").take()[0], RunOpened)


def test_a_host_that_is_lost_or_silent_keeps_no_run_open(world: World) -> None:
    one, two = world.open("1"), world.open("2")
    world.head.on_client(one, CloseRun("1", 0))
    world.head.on_agent(world.agents[0], RunClosed("1"))
    world.head.on_agent_lost(world.agents[1], "gone")
    assert one.take()[-1] == RunClosed("1")
    world.head.on_client(two, CloseRun("2", 0))
    world.clock.advance(14.9)
    assert RunClosed("2") not in two.got
    world.clock.advance(0.2)
    assert two.take()[-1] == RunClosed("2")


def test_a_run_ends_with_its_owner(world: World) -> None:
    member, owner = world.open("1", owner=False), world.open("1")
    world.head.on_client(member, spawn("1", 1, [0]))
    world.take_all()
    world.head.on_client_lost(member, "it left")
    assert world.take_all() == [[StopProcs("1", 1, [0], 5.0)], []]
    world.head.on_client_lost(owner, "it left")
    assert world.take_all() == [[CloseRun("1", -1)]] * 2


def test_a_run_whose_owner_never_came_ends_a_moment_after_its_last_process(world: World) -> None:
    world.head.on_client_lost(world.open("1", owner=False), "it left")
    world.head.on_client_lost(world.open("2", owner=False), "it left")
    world.open("2")
    world.clock.advance(1.9)
    assert world.take_all() == [[], []]
    world.clock.advance(0.2)
    assert world.take_all() == [[CloseRun("1", -1)]] * 2


def test_output_for_a_crowded_controller_is_counted(world: World) -> None:
    client = world.open("1")
    world.head.on_client(client, spawn("1", 1, [0]))
    client.take()
    client.backlogged = True
    world.head.on_agent(world.agents[0], Output(ProcKey("1", 1, 0, 0), "out", ["a", "b"], 3))
    world.head.on_agent(world.agents[0], ProcReady(ProcKey("1", 1, 0, 0), 5, "7", []))
    client.backlogged = False
    world.head.on_agent(world.agents[0], Output(ProcKey("1", 1, 0, 0), "err", ["e"], 0))
    world.head.on_agent(world.agents[0], Output(ProcKey("1", 1, 0, 0), "out", ["c"], 1))
    assert client.take() == [
        ProcReady(ProcKey("1", 1, 0, 0), 5, "7", []),
        Output(ProcKey("1", 1, 0, 0), "err", ["e"], 0),
        Output(ProcKey("1", 1, 0, 0), "out", ["c"], 6),
    ]


def test_status(world: World) -> None:
    client, tool = world.open("1"), Party()
    world.head.on_client(client, spawn("1", 1, [1]))
    world.head.on_agent(world.agents[1], ProcReady(ProcKey("1", 1, 0, 1), 5, "7", []))
    world.head.on_life(world.agents[1], Liveness.SUSPECT)
    world.clock.advance(12.0)
    link: dict[str, object] = {"host": 1, "fabric": "ucx/rdma", "why": "both have RDMA", "procs": 1}
    world.head.on_client(client, RunLinks("1", [link]))
    world.head.on_client(tool, RunLinks("1", [{**link, "host": 0}]))  # not a member of this run
    world.agents[1].fabric, world.agents[1].why = "relay", "no answer"
    world.head.on_client(tool, Status())
    (report,) = tool.take()
    assert isinstance(report, StatusReport)
    assert [(host["name"], host["state"], host["procs"], host["fabric"], host["why"]) for host in report.hosts] == [
        ("n0", "alive", 0, "tcp", "agents use sockets"),
        ("n1", "suspect", 1, "relay", "no answer"),
    ]
    assert report.runs == [
        {
            "run": "1",
            "title": "train.py",
            "controller_host": "login",
            "pid": 7,
            "age_s": 12.0,
            "procs": 1,
            "suspect": [],
            "links": [link],
            "state": "running",
            "epoch": 1,
        }
    ]


def test_a_stopped_proc_is_told_of_and_shown_until_it_goes_on_or_ends(world: World) -> None:
    client, tool = world.open("1"), Party()
    world.head.on_client(client, spawn("1", 9, [0, 1]))
    for rank in (0, 1):
        world.head.on_agent(world.agents[rank], ProcReady(ProcKey("1", 9, rank, rank), 5, "7", []))
    client.take()

    def shown() -> object:
        world.head.on_client(tool, Status())
        (report,) = tool.take()
        assert isinstance(report, StatusReport)
        return report.runs[0]["suspect"]

    suspects = [ProcLife(ProcKey("1", 9, rank, rank), "suspect", 5.0, 15.0) for rank in (0, 1)]
    for rank in (0, 1):
        world.head.on_agent(world.agents[rank], suspects[rank])
    assert client.take() == suspects
    assert shown() == [{"mesh": 9, "rank": 0, "host": "n0"}, {"mesh": 9, "rank": 1, "host": "n1"}]
    world.head.on_agent(world.agents[0], ProcLife(ProcKey("1", 9, 0, 0), "alive", 7.0, 15.0))
    world.head.on_agent(world.agents[1], ProcEnded(ProcKey("1", 9, 1, 1), False, "stopped (SIGSTOP) for 15 s", []))
    assert shown() == []


def test_shut_down_counts_what_is_left(world: World) -> None:
    first, second = Party(), Party()
    world.head.on_client(first, ShutDown(1.0))
    world.head.on_client(second, ShutDown(1.0))
    assert world.take_all() == [[ShutDown(1.0)]] * 2
    assert world.open("1").take() == [Refused("1", "the allocation is being released", "OpenRun")]
    world.head.on_agent(world.agents[0], ShutDownDone({"n0": 0}))
    assert world.ended == 0
    world.head.on_agent(world.agents[1], ShutDownDone({"n1": 2}))
    done = [ShutDownDone({"n0": 0, "n1": 2})]
    assert (first.take(), second.take(), world.ended) == (done, done, 1)
    world.head.on_agent_lost(world.agents[1], "it left")
    assert world.ended == 1


def test_shut_down_waits_for_nobody_for_ever(world: World) -> None:
    tool = Party()
    world.head.on_client(tool, ShutDown(1.0))
    world.head.on_agent_lost(world.agents[0], "gone")
    world.clock.advance(11.1)
    assert (tool.take(), world.ended) == ([ShutDownDone({"n1": -1})], 1)


def test_an_agent_that_leaves_by_itself_is_let_go(world: World) -> None:
    world.head.on_agent(world.agents[1], ShutDownDone({"n1": 0}))
    assert world.agents[1].closed == "it was told to leave"
