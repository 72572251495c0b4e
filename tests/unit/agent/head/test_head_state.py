"""The head's state as a function of its events: a replay gives the same state, and nothing else changes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.agent.head import events
from monarch_hpc.agent.head.hosts.roster import HostRoster
from monarch_hpc.agent.head.state import HeadState, apply
from monarch_hpc.supervision import Liveness
from monarch_hpc.wire.control.allocation import Join, ShutDownDone
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, ProcsStopped, StopProcs
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunClosed
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import Party, World, entry, spawn

HOSTS, RUNS, MESHES, RANKS = range(3), ("1", "2"), range(1, 3), range(4)

ACTS = st.one_of(
    st.tuples(st.sampled_from(["join", "lose", "life", "done"]), st.sampled_from(HOSTS)),
    st.tuples(st.sampled_from(["open", "attach", "leave", "close"]), st.sampled_from(RUNS)),
    st.tuples(
        st.sampled_from(["spawn", "ready", "ended", "stopped by a signal", "stop", "stopped", "closed"]),
        st.sampled_from(RUNS),
        st.sampled_from(MESHES),
        st.sampled_from(HOSTS),
        st.sampled_from(RANKS),
    ),
    st.tuples(st.sampled_from(["deadline", "wait", "shut down"])),
)


class Bench:
    """A head, and clients that come and go."""

    def __init__(self) -> None:
        self.world = World(len(HOSTS))
        self.head = self.world.head
        self.clients: dict[str, list[Party]] = {run: [] for run in RUNS}

    def act(self, what: str, *args: object) -> None:
        """Let the head receive one message, loss or timer."""
        if args and isinstance(args[0], int):
            self._host(what, args[0])
        elif len(args) == 1:
            self._client(what, str(args[0]))
        elif args:
            run, mesh, host, rank = args
            assert isinstance(run, str) and isinstance(mesh, int) and isinstance(host, int) and isinstance(rank, int)
            self._mesh(what, run, mesh, host, rank)
        elif what == "deadline":
            self.head.on_bootstrap_deadline()
        elif what == "wait":
            self.world.clock.advance(30.0)
        else:
            self.head.shut_down(1.0, None)

    def _host(self, what: str, host: int) -> None:
        agent = self.world.agents[host]
        match what:
            case "join":
                self.head.on_join(agent, Join(entry(host), ""))
            case "lose":
                self.head.on_agent_lost(agent, "no power")
            case "life":
                self.head.on_life(agent, Liveness.SUSPECT)
            case _:
                self.head.on_agent(agent, ShutDownDone({f"n{host}": 0}))

    def _client(self, what: str, run: str) -> None:
        clients = self.clients[run]
        if what in ("open", "attach"):
            clients.append(Party())
            self.head.on_client(clients[-1], OpenRun(run, "train.py", "login", 7, what == "open"))
        elif clients and what == "leave":
            self.head.on_client_lost(clients.pop(), "it left")
        elif clients:
            self.head.on_client(clients[-1], CloseRun(run, 0))

    def _mesh(self, what: str, run: str, mesh: int, host: int, rank: int) -> None:
        agent, clients = self.world.agents[host], self.clients[run]
        match what:
            case "spawn" if clients:
                self.head.on_client(clients[-1], spawn(run, mesh, list(HOSTS)))
            case "stop" if clients:
                self.head.on_client(clients[-1], StopProcs(run, mesh, [host], 1.0))
            case "ready":
                self.head.on_agent(agent, ProcReady(ProcKey(run, mesh, rank, host), 100, "1", []))
            case "ended":
                self.head.on_agent(agent, ProcEnded(ProcKey(run, mesh, rank, host), False, "exit code 1", []))
            case "stopped by a signal":
                self.head.on_agent(agent, ProcLife(ProcKey(run, mesh, rank, host), "suspect", 1.0, 60.0))
            case "stopped":
                self.head.on_agent(agent, ProcsStopped(run, mesh, host))
            case "closed":
                self.head.on_agent(agent, RunClosed(run))


@given(st.lists(ACTS, max_size=40))
def test_a_replay_of_the_events_gives_the_same_state(acts: list[tuple[object, ...]]) -> None:
    bench = Bench()
    replayed = HeadState(HostRoster(len(HOSTS)))
    for what, *args in acts:
        bench.act(str(what), *args)
        while bench.world.events:
            apply(replayed, bench.world.events.pop(0))
        assert bench.head.state == replayed


def joined() -> HeadState:
    state = HeadState(HostRoster(2))
    for rank in range(2):
        apply(state, events.HostJoined(rank + 1, entry(rank), ""))
    apply(state, events.RunAttached(7, OpenRun("1", "train.py", "login", 7, owner=True), 3.0))
    apply(state, events.MeshRequested("1", 1, 7, (0, 1)))
    return state


def test_a_lost_host_takes_its_procs_along() -> None:
    state = joined()
    apply(state, events.ProcStarted(ProcKey("1", 1, 0, 0)))
    apply(state, events.ProcStarted(ProcKey("1", 1, 1, 1)))
    apply(state, events.ProcStopped(ProcKey("1", 1, 1, 1), stopped=True))
    apply(state, events.HostGone(1, "no power"))
    mesh = state.mesh("1", 1)
    assert mesh is not None and (mesh.alive, mesh.suspect, mesh.hosts) == ({0: 0}, set(), {0})
    apply(state, events.HostGone(0, "no power"))
    assert state.mesh("1", 1) is None
    assert state.roster.missing() == {} and not state.roster.hosts()


def test_a_run_ends_with_the_last_host_that_may_have_procs_of_it() -> None:
    state = joined()
    apply(state, events.RunStopping("1"))
    assert state.runs["1"].closing == {0, 1}
    apply(state, events.RunLeftHost("1", 0))
    apply(state, events.HostGone(1, "no power"))
    assert state.runs == {}
    apply(state, events.RunLeftHost("1", 1))  # a late report
    apply(state, events.ProcGone(ProcKey("1", 1, 0, 0)))


def test_another_owner_begins_another_epoch() -> None:
    state = joined()
    assert (state.runs["1"].epoch, state.runs["1"].owner) == (1, 7)
    apply(state, events.RunAttached(8, OpenRun("1", "other.py", "login", 8, owner=False), 4.0))
    assert (state.runs["1"].epoch, state.runs["1"].owner) == (1, 7)
    apply(state, events.RunAttached(8, OpenRun("1", "x" * 2000, "login", 8, owner=True), 4.0))
    run = state.runs["1"]
    assert (run.epoch, run.owner, run.members, len(run.opened.title)) == (3, 8, [7, 8], 1000)
