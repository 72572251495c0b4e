"""Hosts as seen by a program and its actors: their identity, the procs started on them, and who may stop them."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, AllocationError, HostMesh, ProcMesh, SpawnError, endpoint
from monarch_hpc.actor.context import Context
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import BootstrapFailed
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Guest(Actor):
    """Reports its host and process."""

    @endpoint
    def place(self) -> tuple[dict[str, int], str, int]:
        return dict(monarch_hpc.current_rank()), monarch_hpc.context().proc.host, os.getpid()

    @endpoint
    def context(self) -> Context:
        return monarch_hpc.context()

    @endpoint
    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def affinity(self) -> set[int]:
        return os.sched_getaffinity(0)

    @endpoint
    def here(self) -> tuple[dict[str, int], list[str], HostMesh]:
        here = monarch_hpc.this_host()
        return here.sizes, [entry.name for entry in here.entries], here

    @endpoint
    def everywhere(self) -> HostMesh:
        return monarch_hpc.hosts()

    @endpoint
    def executable(self) -> str:
        return os.readlink("/proc/self/exe") + " " + sys.executable

    @endpoint
    def nested_executable(self) -> str:
        with monarch_hpc.this_host().spawn_procs() as procs:
            return str(procs.spawn("inner", Guest).executable.call_one().get(_PATIENCE_S))

    @endpoint
    def try_to_stop(self, mesh: ProcMesh | HostMesh) -> str:
        with pytest.raises(RuntimeError, match="not owned here") as caught:
            mesh.stop()
        return str(caught.value)

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)  # agents choose it
        with controlled(load().config, num_hosts=4) as hosts:
            yield hosts


@pytest.fixture(scope="module", autouse=True)
def procs(hosts: HostMesh) -> ProcMesh:
    """Procs shared by all tests; as the first ones they start UCX in this process, which then keeps running."""
    procs = hosts.slice(hosts=slice(0, 2)).spawn_procs()
    settle(procs)
    return procs


def test_a_grid_of_hosts_gives_a_grid_of_procs(hosts: HostMesh, procs: ProcMesh) -> None:
    grid = hosts.split(hosts=("racks", "hosts"), racks=2).rename(racks="r", hosts="h")
    with grid.spawn_procs(per_host={"gpus": 2}) as cube:
        assert cube.sizes == {"r": 2, "h": 2, "gpus": 2}
        for point, (rank, host, _) in cube.spawn("guest", Guest).place.call().get(_PATIENCE_S):
            assert rank == dict(point)
            assert host == f"local{2 * point['r'] + point['h']}"
        assert [entry.name for entry in cube.slice(gpus=1).host_mesh.entries] == [f"local{host}" for host in range(4)]
    column = grid.slice(h=1)
    with column.spawn_procs() as two:
        assert two.sizes == {"r": 2}
        places = two.spawn("guest", Guest).place.call().get(_PATIENCE_S)
        assert [value[:2] for value in places.values()] == [({"r": 0}, "local1"), ({"r": 1}, "local3")]
    backwards = grid.flatten("all").slice(all=slice(None, None, -1))
    with backwards.spawn_procs() as four:
        assert [proc.host for proc in four.procs] == ["local3", "local2", "local1", "local0"]


def test_procs_are_shown_as_a_table(procs: ProcMesh) -> None:
    pids = [proc.pid for proc in procs.procs]
    assert procs.to_table().split("\n") == [
        "rank  hosts  host    pid",
        f"0     0      local0  {pids[0]}",
        f"1     1      local1  {pids[1]}",
    ]
    assert procs.initialized.get() is True and monarch_hpc.hosts().initialized.get() is True


def test_processes_are_known_by_name_to_who_looks_at_the_host(procs: ProcMesh) -> None:
    pids = [proc.pid for proc in procs.procs]
    assert [Path(f"/proc/{pid}/comm").read_text() for pid in pids] == ["monarch-r00\n", "monarch-r01\n"]


def test_this_host_is_where_the_code_runs(procs: ProcMesh) -> None:
    assert monarch_hpc.this_host().sizes == {}
    assert [entry.name for entry in monarch_hpc.this_host().entries] == ["local0"]
    guests = procs.spawn("guest", Guest)
    for point, (sizes, names, mesh) in guests.here.call().get(_PATIENCE_S):
        assert (sizes, names, len(mesh)) == ({}, [f"local{point['hosts']}"], 1)
        # A mesh received in a message can be used here.
        with mesh.spawn_procs(per_host={"x": 2}) as inner:
            assert inner.sizes == {"x": 2} and {proc.host for proc in inner.procs} == set(names)
    found = guests.everywhere.call().get(_PATIENCE_S).item(hosts=1)
    assert found.sizes == {"hosts": 4} and found.entries == monarch_hpc.hosts().entries
    assert procs.slice(hosts=1).host_mesh.entries == found.slice(hosts=1).entries


def test_only_the_owner_ends_procs_and_hosts(hosts: HostMesh, procs: ProcMesh) -> None:
    guest = procs.slice(hosts=0).spawn("guest", Guest)
    with hosts.spawn_procs() as mine:
        for reference in (mine.slice(hosts=0), pickle.loads(pickle.dumps(mine))):
            with pytest.raises(RuntimeError, match="only the caller of spawn_procs can stop the procs"):
                reference.stop()
        assert "came in a message" in guest.try_to_stop.call_one(mine).get(_PATIENCE_S)
        assert "only the program can stop hosts" in guest.try_to_stop.call_one(hosts).get(_PATIENCE_S)
        for part in (pickle.loads(pickle.dumps(hosts)), pickle.loads(pickle.dumps(hosts.slice(hosts=0)))):
            with pytest.raises(RuntimeError, match="only the program can shut down hosts"):
                part.shutdown()
        survivors = mine.flatten("rank")
        guests = survivors.spawn("guest", Guest)
        guests.place.call().get(_PATIENCE_S)
        # A view of all hosts may do what the mesh itself may.
        survivors.stop("no longer needed").get(_PATIENCE_S)
        with pytest.raises(ActorDied, match="it was stopped: no longer needed"):
            guests.slice(rank=0).place.call_one().get(_PATIENCE_S)


def test_variables_are_set_and_unset(hosts: HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosts.slice(hosts=0).spawn_procs(env={"MINE": "1", "PATH": None, "OMP_NUM_THREADS": "3"}) as procs:
        guest = procs.spawn("guest", Guest)
        assert guest.environment.call_one("MINE", "PATH", "OMP_NUM_THREADS").get(_PATIENCE_S) == ["1", None, "3"]


def test_procs_of_a_machine_that_nobody_granted_are_not_bound(
    hosts: HostMesh,
) -> None:
    granted = set(hosts.slice(hosts=0).entries[0].cpus)
    num = len(granted)
    one = hosts.slice(hosts=0)
    with one.spawn_procs(per_host={"gpus": 2}) as procs:
        guests = procs.spawn("guest", Guest)
        assert list(guests.affinity.call().get(_PATIENCE_S).values()) == [granted] * 2
        threads = [value[0] for value in guests.environment.call("OMP_NUM_THREADS").get(_PATIENCE_S).values()]
        assert threads == [str(max(1, num // (2 * 4)))] * 2  # the machine is four hosts
        assert set(guests.context.call().get(_PATIENCE_S).item(gpus=1).proc.cpus) == granted
    with one.spawn_procs(per_host={"gpus": 2}, proc_bind="none") as procs:
        assert list(procs.spawn("guest", Guest).affinity.call().get(_PATIENCE_S).values()) == [granted] * 2


def test_the_only_proc_of_each_host_computes_with_its_part_of_the_machine(hosts: HostMesh) -> None:
    num = len(hosts.slice(hosts=0).entries[0].cpus)
    with hosts.slice(hosts=slice(0, 2)).spawn_procs() as procs:
        guests = procs.spawn("guest", Guest)
        threads = [value[0] for value in guests.environment.call("OMP_NUM_THREADS").get(_PATIENCE_S).values()]
        assert threads == [str(max(1, num // 4))] * 2
    with hosts.slice(hosts=0).spawn_procs(proc_bind="none") as procs:
        assert procs.spawn("guest", Guest).environment.call_one("OMP_NUM_THREADS").get(_PATIENCE_S) == [None]


def test_procs_are_bound_where_the_user_says(hosts: HostMesh) -> None:
    cpus = hosts.slice(hosts=0).entries[0].cpus
    one = hosts.slice(hosts=0)
    bindings = [{"cpus": str(cpus[-1])}, {"cpunodebind": "all", "physcpubind": str(cpus[0])}]
    with one.spawn_procs(per_host={"gpus": 2}, proc_bind=bindings) as procs:
        found = list(procs.spawn("guest", Guest).affinity.call().get(_PATIENCE_S).values())
        assert found == [{cpus[-1]}, {cpus[0]}]


@pytest.mark.parametrize(
    ("bindings", "words"),
    [
        ([{"cpus": "4000"}], r"proc_bind\[0\]\['cpus'\] asks for 4000; CPUs granted on local0: "),
        ([{"cpus": "zero"}], "'zero' is not a list of numbers such as '0-3,8', or 'all'"),
        ([{"cores": "0"}], "has no key 'cores'; known: cpunodebind, membind, physcpubind, cpus"),
        ([{}, {}], "proc_bind has 2 entries, and there are 1 procs on each host"),
        ("close", "proc_bind is 'close'; it is 'auto', 'none' or a list"),
    ],
)
def test_a_binding_that_cannot_be_is_refused_before_anything_starts(
    hosts: HostMesh, bindings: list[dict[str, str]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        hosts.spawn_procs(proc_bind=bindings)


def test_a_node_that_a_host_has_not_is_a_spawn_error(hosts: HostMesh) -> None:
    with pytest.raises(SpawnError, match=r"no proc on local0: proc_bind\[0\]\['membind'\] asks for 999; NUMA nodes"):
        hosts.slice(hosts=0).spawn_procs(proc_bind=[{"membind": "999"}]).initialized.get(_PATIENCE_S)


def test_mpi_needs_slurm(hosts: HostMesh) -> None:
    with pytest.raises(SpawnError, match="no proc on local0: mpi=True needs a Slurm job"):
        hosts.slice(hosts=0).spawn_procs(mpi=True).initialized.get(_PATIENCE_S)


def test_a_bootstrap_runs_before_any_actor(hosts: HostMesh) -> None:
    def prepare() -> None:
        os.environ["PREPARED"] = "by a function"

    async def prepare_later() -> None:
        await asyncio.sleep(0)
        os.environ["PREPARED"] = "by a coroutine"

    one = hosts.slice(hosts=0)
    for function, words in ((prepare, "by a function"), (prepare_later, "by a coroutine")):
        with one.spawn_procs(bootstrap=function) as procs:
            assert procs.spawn("guest", Guest).environment.call_one("PREPARED").get(_PATIENCE_S) == [words]


def test_a_failing_bootstrap_is_a_spawn_error_with_host_rank_and_reason(
    hosts: HostMesh, faults: list[MeshFailure]
) -> None:
    def fail() -> None:
        if monarch_hpc.context().proc.rank == 3:
            raise KeyError("no such licence")

    def leave() -> None:
        if monarch_hpc.context().proc.rank == 1:
            os._exit(7)

    two = hosts.slice(hosts=slice(2, 4))
    with pytest.raises(
        SpawnError, match=r"local3: the bootstrap of choir failed on rank 3: KeyError.*licence"
    ) as caught:
        two.spawn_procs({"gpus": 2}, fail, "choir").initialized.get(_PATIENCE_S)
    assert any('raise KeyError("no such licence")' in line for line in caught.value.last_lines)
    with pytest.raises(SpawnError, match="local2: the bootstrap of its mesh failed on rank 1: exit code 7"):
        two.spawn_procs({"gpus": 2}, bootstrap=leave).initialized.get(_PATIENCE_S)
    assert faults == []


@pytest.mark.parametrize("later", [False, True])
def test_a_bootstrap_that_exits_fails_the_start_and_nothing_else(
    hosts: HostMesh, faults: list[MeshFailure], later: bool
) -> None:
    def leave() -> None:
        sys.exit("no licence")

    async def leave_later() -> None:
        raise KeyboardInterrupt

    with pytest.raises(
        BootstrapFailed, match="it raised KeyboardInterrupt" if later else "it raised SystemExit: no lic"
    ):
        hosts.slice(hosts=0).spawn_procs(bootstrap=leave_later if later else leave).initialized.get(_PATIENCE_S)
    assert faults == []


def test_procs_run_in_another_interpreter(hosts: HostMesh, tmp_path: Path) -> None:
    other = tmp_path / "other python"
    other.write_text(f'#!/bin/sh\nexport OTHER=yes\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    there = hosts.slice(hosts=1).with_python_executable(str(other))
    with there.spawn_procs() as procs:
        guest = procs.spawn("guest", Guest)
        assert guest.environment.call_one("OTHER").get(_PATIENCE_S) == ["yes"]
        assert guest.context.call_one().get(_PATIENCE_S).proc.python == str(other)
        assert sys.executable in guest.nested_executable.call_one().get(_PATIENCE_S)
    with hosts.slice(hosts=1).spawn_procs() as procs:
        assert procs.spawn("guest", Guest).environment.call_one("OTHER").get(_PATIENCE_S) == [None]


def test_an_interpreter_that_cannot_serve_says_why(hosts: HostMesh, tmp_path: Path) -> None:
    one = hosts.slice(hosts=0)
    with pytest.raises(SpawnError, match="local0: /no/such/python: No such file"):
        one.with_python_executable("/no/such/python").spawn_procs().initialized.get(_PATIENCE_S)
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -c "import no_such_package_of_ours"\n')
    bare.chmod(0o755)
    with pytest.raises(SpawnError, match="bare ended: exit code 1; it needs monarch-hpc") as caught:
        one.with_python_executable(str(bare)).spawn_procs().initialized.get(_PATIENCE_S)
    assert "No module named 'no_such_package_of_ours'" in caught.value.last_lines[-1]
    old = tmp_path / "old"
    code = (
        "import monarch_hpc.agent.procs.zygote as zygote, socket, sys\n"
        "zygote.versions = lambda: ['Python 3.9', 'monarch-hpc 0.0.1']\n"
        "sys.exit(zygote.serve(socket.socket(fileno=int(sys.argv[-1]))))\n"
    )
    (tmp_path / "old.py").write_text(code)
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/old.py" "$4"\n')
    old.chmod(0o755)
    with pytest.raises(SpawnError, match=r"old is Python 3\.9 with monarch-hpc 0\.0\.1; the program and its hosts are"):
        one.with_python_executable(str(old)).spawn_procs().initialized.get(_PATIENCE_S)


def test_a_program_knows_its_place_in_slurm(hosts: HostMesh, procs: ProcMesh) -> None:
    here = monarch_hpc.context().proc
    assert (here.host_rank, set(here.cpus)) == (0, os.sched_getaffinity(0))
    assert here.host and len(here.allocation) == 32 and here.run == "feedbeef"
    assert (here.slurm_job_id, here.slurm.node) == (os.environ.get("SLURM_JOB_ID", ""), "")
    there = procs.slice(hosts=1).spawn("guest", Guest).context.call_one().get(_PATIENCE_S).proc
    assert (there.host_rank, there.run, there.allocation) == (1, here.run, here.allocation)


def test_an_actor_is_spawned_where_another_has_failed(procs: ProcMesh, faults: list[MeshFailure]) -> None:
    one = procs.slice(hosts=0)
    broken = one.spawn("broken", Guest)
    broken.fail.broadcast()
    with pytest.raises(ActorDied, match="as asked"):
        broken.place.call_one().get(_PATIENCE_S)
    again = one.spawn("broken", Guest)
    assert again.place.call_one().get(_PATIENCE_S)[1] == "local0"
    wait_until("the failure", lambda: [failure.mesh_name for failure in faults], accept=lambda seen: seen == ["broken"])


def test_contexts_stop_procs_in_coroutines_too(hosts: HostMesh) -> None:
    async def main() -> int:
        async with hosts.slice(hosts=0).spawn_procs() as procs:
            guest = procs.spawn("guest", Guest)
            await guest.place.call_one()
            return procs.procs[0].pid

    assert not Path(f"/proc/{asyncio.run(main())}").exists()


def test_hosts_of_slurm_are_not_shut_down_by_a_program(
    hosts: HostMesh, procs: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Controller.instance().tenancies.all()[0], "outlived", True)
    with pytest.raises(AllocationError, match=r"it outlives this program; .* 'monarch-hpc release'"):
        hosts.shutdown()
