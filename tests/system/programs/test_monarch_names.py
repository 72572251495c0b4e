"""Names from Monarch without a page in docs/: each does what programs written for Monarch expect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

import monarch_hpc.actor
from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.actor import (
    Actor,
    ActorError,
    BootstrapCommand,
    Channel,
    Extent,
    MeshFailure,
    Point,
    Port,
    SupervisionError,
    as_endpoint,
    context,
    current_actor_name,
    current_rank,
    default_bootstrap_cmd,
    endpoint,
    get_meter,
    send,
    shutdown_context,
    span,
    this_proc,
    traced,
)
from monarch_hpc.config import Config
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import MeshDied, PortClosed
from monarch_hpc.spmd import AddrType, SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def config() -> Config:
    return load({"transport.connect_s": PATIENCE_S}).config


@pytest.fixture(scope="module")
def hosts(config: Config) -> Iterator[HostMesh]:
    with controlled(config) as made:
        with made.spawn_procs() as procs:
            settle(procs)
        yield made


@pytest.fixture
def pair(hosts: HostMesh) -> Iterator[ProcMesh]:
    """One proc on each host."""
    with hosts.spawn_procs() as procs:
        yield procs


@pytest.fixture
def grid(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Two procs on each host."""
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        yield procs


class Worker(Actor):
    def __init__(self, base: int = 0) -> None:
        self.base = base

    @endpoint
    def add(self, number: int) -> int:
        if number < 0:
            raise ValueError(f"{number} is negative")
        return self.base + number + 10 * current_rank().rank

    @endpoint
    def die(self) -> None:
        os._exit(3)

    def plain(self, number: int) -> int:
        return number + 1

    async def slow(self, number: int) -> int:
        await asyncio.sleep(0)
        return number + 2

    def answering(self, port: Port[int], number: int) -> None:
        port.send(number + 3)

    @endpoint
    def me(self) -> dict[str, object]:
        me = context().actor_instance
        return {
            "name": me.name,
            "rank": dict(me.rank),
            "id": str(me.actor_id),
            "proc": me.proc_id,
            "pid": os.getpid(),
            "class": me.class_name,
            "current": current_actor_name(),
            "same": me.proc.extent == Extent((), ()) and me.proc is this_proc(),
        }

    @endpoint
    def stop_me(self) -> None:
        context().actor_instance.stop("enough")

    @endpoint
    def kill_me(self) -> None:
        context().actor_instance.kill("no more")

    @endpoint
    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]


def test_a_sent_call_answers_to_a_port(pair: ProcMesh) -> None:
    workers = pair.spawn("worker", Worker)
    port, receiver = Channel.open(ranked=True)
    send(workers.add, (1,), {}, port)
    assert sorted(receiver.recv().get(PATIENCE_S) for _ in range(2)) == [(0, 1), (1, 11)]
    send(workers.add, (-1,), {}, port=port)
    for _ in range(2):
        with pytest.raises(ValueError, match="-1 is negative"):
            receiver.recv().get(PATIENCE_S)
    send(workers.add, (), {"number": 2}, port, selection="choose")
    assert receiver.recv().get(PATIENCE_S) in ((0, 2), (0, 12))
    send(workers.slice(hosts=0).add, (1,), {})
    with pytest.raises(ValueError, match="selection is 'some'"):
        send(workers.add, (1,), {}, port, selection="some")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        send(workers.add, (1, 2), {}, port)
    receiver.close()
    send(workers.add, (1,), {}, port)  # the receiver has gone, which is not an error


def test_a_closed_port_says_so_unless_told_not_to(hosts: HostMesh) -> None:
    port, receiver = Channel.open(capacity=1)
    assert port.return_undeliverable
    receiver.close()

    def refused() -> bool:
        try:
            port.send(1)
        except PortClosed:
            return True
        return False

    wait_until("the port to be known as closed", refused, PATIENCE_S)
    port.return_undeliverable = False
    port.send(2)


def test_methods_that_are_no_endpoints_are_called_on_request(pair: ProcMesh) -> None:
    workers = pair.spawn("worker", Worker)
    assert list(as_endpoint(workers.plain).call(1).get().values()) == [2, 2]
    assert list(as_endpoint(workers.slow).call(1).get().values()) == [3, 3]
    answering = as_endpoint(workers.answering, explicit_response_port=True)
    assert list(answering.call(1).get().values()) == [4, 4]
    with pytest.raises(TypeError):
        as_endpoint(workers.plain).call()
    with pytest.raises(AttributeError, match=r"as_endpoint\(worker\.plain\)"):
        workers.plain.call(1)
    with pytest.raises(ValueError, match="an endpoint already"):
        as_endpoint(workers.add)
    with pytest.raises(ValueError, match="a method of an actor mesh"):
        as_endpoint(len)
    with pytest.raises(AttributeError, match="no endpoint 'nothing'"):
        _ = workers.nothing


class Unborn(Actor):
    def __init__(self) -> None:
        raise ValueError("no birth")

    @endpoint
    def initialized(self) -> str:
        return "mine"


def test_a_mesh_is_initialized_when_its_constructors_have_run(pair: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", lambda _failure: None)
    born: Any = pair.spawn("worker", Worker)  # to a type checker, every attribute is an endpoint
    assert born.initialized.get() is True
    with pytest.raises(SupervisionError, match="no birth"):
        pair.spawn("unborn", Unborn).initialized.call().get(PATIENCE_S)


def test_an_actor_knows_itself(grid: ProcMesh) -> None:
    workers = grid.spawn("worker", Worker)
    found = workers.slice(hosts=1).me.call().get().item(gpus=1)
    pid = found.pop("pid")
    proc = f"local1/{pid}"
    assert found == {
        "name": "worker",
        "rank": {"hosts": 1, "gpus": 1},
        "id": f"{proc}/worker[3]",
        "proc": proc,
        "class": f"{__name__}.Worker",
        "current": f"{proc}/worker[3]",
        "same": True,
    }
    program = context().actor_instance
    assert program.name == "client" and program.class_name is None and program.proc.extent == Extent((), ())
    assert program.creator is None and program.proc_mesh is program.proc
    assert current_actor_name() == f"{program.proc_id}/client[0]"
    with pytest.raises(RuntimeError, match="this is the program"):
        program.stop()
    this_proc().seen = True  # type: ignore[attr-defined]  # programs keep what belongs to the process there
    assert this_proc() is this_proc() is program.proc and this_proc().seen  # type: ignore[attr-defined]


def test_an_actor_ends_itself(pair: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[MeshFailure] = []
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", seen.append)
    procs = pair.slice(hosts=0)
    leaver, victim = procs.spawn("leaver", Worker), procs.spawn("victim", Worker)
    leaver.stop_me.call_one().get()
    with pytest.raises(SupervisionError):
        leaver.add.call_one(1).get(PATIENCE_S)
    assert seen == []
    victim.kill_me.call_one().get()
    wait_until("the failure", lambda: seen, PATIENCE_S)
    assert "victim" in str(seen[0]) and "no more" in str(seen[0])
    assert f"of class {__name__}.Worker" in seen[0].report()
    with pytest.raises(SupervisionError, match="no more"):
        victim.add.call_one(1).get(PATIENCE_S)


def test_what_fails_is_caught_as_programs_expect(pair: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", lambda _failure: None)
    workers = pair.spawn("worker", Worker)
    one = workers.slice(hosts=0)
    with pytest.raises(ActorError) as caught:
        one.add.call_one(-1).get()
    assert isinstance(caught.value, ValueError) and "remote traceback" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="negative"):
        one.add.call_one(-1).get()
    with pytest.raises(MeshDied) as gone:
        workers.die.call().get(PATIENCE_S)
    assert isinstance(gone.value, SupervisionError) and isinstance(gone.value, RuntimeError)
    with pytest.raises(SupervisionError):
        one.add.call_one(1).get(PATIENCE_S)


def test_the_environment_of_a_bootstrap_command_is_that_of_the_procs(hosts: HostMesh) -> None:
    command = default_bootstrap_cmd().with_env({"FLAVOUR": "mint", "HOME": None}).with_env({"COLOUR": "green"})
    with hosts.slice(hosts=0).spawn_procs(bootstrap_command=command, env={"COLOUR": "blue"}) as procs:
        found = procs.spawn("worker", Worker).environment.call_one("FLAVOUR", "HOME", "COLOUR").get()
    assert found == ["mint", None, "blue"]
    with pytest.raises(ValueError, match="with_python_executable"):
        hosts.spawn_procs(bootstrap_command=BootstrapCommand("/bin/true"))


def test_a_bootstrap_command_may_depend_on_the_coordinates_of_a_proc(hosts: HostMesh) -> None:
    def command(point: Point) -> BootstrapCommand:
        return default_bootstrap_cmd().with_env({"PLACE": f"{point['hosts']}/{point['gpus']}", "COLOUR": "green"})

    def look() -> None:
        assert os.environ["PLACE"], "the caller's bootstrap comes after"

    with hosts.spawn_procs({"gpus": 2}, look, bootstrap_command=command, env={"COLOUR": "blue"}) as procs:
        workers = procs.spawn("worker", Worker)
        found = list(workers.environment.call("PLACE", "COLOUR").get().values())
    assert found == [[f"{host}/{gpu}", "blue"] for host in range(len(hosts)) for gpu in range(2)]
    with pytest.raises(TypeError, match="a function of a proc's coordinates"):
        hosts.spawn_procs(bootstrap_command=lambda _point: "python")  # type: ignore[arg-type, return-value]


def test_a_bootstrap_function_may_wait_for_actors_of_its_proc(hosts: HostMesh) -> None:
    def call() -> None:
        worker = monarch_hpc.this_proc().spawn("worker", Worker)
        os.environ["WAITED"] = str(len(worker.environment.call_one("PATH").get(PATIENCE_S)))

    with hosts.slice(hosts=0).spawn_procs(bootstrap=call) as procs:
        assert procs.spawn("worker", Worker).environment.call_one("WAITED").get() == ["1"]


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME")


def test_procs_get_the_variables_of_torchrun(grid: ProcMesh) -> None:
    workers = grid.spawn("worker", Worker)
    setup_torch_elastic_env(grid)
    found = list(workers.environment.call(*VARIABLES).get().values())
    assert found == [[str(n), "4", str(n % 2), "2", str(n // 2), "2", "rank"] for n in range(4)]
    places = {tuple(each) for each in workers.environment.call("MASTER_ADDR", "MASTER_PORT").get().values()}
    ((address, port),) = places
    assert address == "127.0.0.1" and 0 < int(port or 0) < 65536
    asyncio.run(setup_torch_elastic_env_async(grid, "n1", 1234))
    assert set(map(tuple, workers.environment.call("MASTER_ADDR", "MASTER_PORT").get().values())) == {("n1", "1234")}
    with pytest.raises(ValueError, match="both master_addr and master_port, or neither"):
        setup_torch_elastic_env(grid, master_addr="n1")


SCRIPT = """
import os, sys
assert __name__ == "__main__"
with open(sys.argv[1] + os.environ["RANK"], "w") as file:
    file.write(" ".join([os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], *sys.argv[2:]]))
"""


def test_a_script_runs_on_all_ranks_as_torchrun_would_run_it(
    pair: ProcMesh, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("script")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    members = pair.spawn("spmd", SPMDActor)
    place = members.slice(hosts=0).get_host_port.call_one(AddrType.IPv4).get()
    assert list(members.main.call(*place, [str(script), f"{folder}/rank", "a"]).get().values()) == [True, True]
    assert [(folder / f"rank{rank}").read_text() for rank in (0, 1)] == ["0 2 a", "0 2 a"]
    assert members.slice(hosts=0).main.call_one(*place, ["-m", "this"]).get() is True
    with pytest.raises(ValueError, match="no script"):
        members.slice(hosts=0).main.call_one(*place, []).get()


def test_spans_and_meters_need_no_opentelemetry() -> None:
    @traced
    def double(number: int) -> int:
        return 2 * number

    @traced(name="triple")
    async def triple(number: int) -> int:
        return 3 * number

    with span("all"):
        assert double(2) == 4 and asyncio.run(triple(2)) == 6
    assert double.__name__ == "double"
    get_meter().create_counter("steps").add(1, {"rank": 0})
    with pytest.raises(AttributeError, match="without OpenTelemetry"):
        get_meter().create_observable_gauge("used")


def test_extents_and_points_read_as_there() -> None:
    extent = Extent(["hosts", "gpus"], [2, 3])
    assert (extent.labels, extent.sizes, extent.nelements) == (["hosts", "gpus"], [2, 3], 6)
    assert extent["gpus"] == 3 and list(extent) == extent.keys() == ["hosts", "gpus"]
    point = Point(4, extent)
    assert dict(point) == {"hosts": 1, "gpus": 1} and point.size("gpus") == 3 and hash(extent)


def test_the_time_for_a_shut_down_is_checked() -> None:
    with pytest.raises(ValueError, match="host_timeout"):
        shutdown_context(-1.0)
