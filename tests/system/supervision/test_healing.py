"""Dead procs come back in their places with their actors; calls begun before reach no new life."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, MeshDied, Restart, endpoint, heal_mesh
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Worker(Actor):
    """Counts, and keeps what it was made with."""

    def __init__(self, given: list[int]) -> None:
        self.given = given
        self.count = 0

    def __checkpoint__(self) -> dict[str, object]:
        return {"count": self.count}

    def __restore__(self, state: dict[str, int]) -> None:
        self.count = state["count"]

    @endpoint
    def add(self, num: int) -> int:
        self.count += num
        return self.count

    @endpoint
    def where(self) -> tuple[int, int, list[int]]:
        return monarch_hpc.current_rank().rank, os.getpid(), self.given

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def hold(self, others: ActorMesh[Any]) -> None:
        self.others = others

    @endpoint
    def others_pids(self) -> list[int]:
        return [pid for _, pid, _ in self.others.where.call().get(_PATIENCE_S).values()]


@pytest.fixture(scope="module", params=[16, 1], ids=["direct", "tree"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    config = load({"procs.stop_s": 1.0, "heal.tries": 0, "transport.cast_direct": request.param}).config
    with controlled(config) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


def pids(workers: ActorMesh[Worker]) -> list[int]:
    """The processes of all workers, by rank."""
    found = workers.where.call().get(_PATIENCE_S).values()
    assert [rank for rank, _, _ in found] == list(range(len(found)))
    return [pid for _, pid, _ in found]


def test_a_dead_proc_comes_back_with_its_actors_for_all_who_hold_the_mesh(
    hosts: HostMesh, faults: list[MeshFailure]
) -> None:
    with hosts.spawn_procs(per_host={"gpus": 2}, name="mesh") as procs:
        workers = procs.spawn("worker", Worker, [7])
        first = workers.slice(hosts=0)
        first.hold.call(workers.slice(hosts=1)).get(_PATIENCE_S)
        before = pids(workers)
        third = workers.slice(hosts=1)
        num_sent = current_runtime().casts.num_sent
        with pytest.raises(MeshDied, match="signal 9"):
            third.slice(gpus=slice(1, 2)).die.call().get(_PATIENCE_S)
        healed = procs.heal()
        assert (healed.mesh, healed.respawned, healed.removed) == (procs, (3,), ())
        assert healed.causes == {3: "signal 9 (SIGKILL)"}
        after = pids(workers)
        assert after[:3] == before[:3] and after[3] != before[3]
        assert procs.heals == 1 and procs.procs[3].restarts == 1
        assert workers.slice(hosts=1, gpus=1).where.call_one().get(_PATIENCE_S)[2] == [7]
        # No message overtakes what they have to know for it.
        assert first.others_pids.call().get(_PATIENCE_S).values() == [after[2:]] * 2
        assert {workers.where.choose().get(_PATIENCE_S)[1] for _ in range(4)} == set(after)
        assert pids(procs.spawn("later", Worker, [])) == after
        if current_runtime().casts.max_direct == 1:
            assert current_runtime().casts.num_sent > num_sent  # the tree still serves the mesh
        assert procs.heal().respawned == ()
    assert faults == []


def test_a_mesh_goes_on_without_what_cannot_come_back(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.spawn_procs(per_host={"gpus": 2}, name="mesh") as procs:
        workers = procs.spawn("worker", Worker, [])
        before = pids(workers)
        with pytest.raises(ActorDied):
            workers.slice(hosts=0, gpus=1).die.call_one().get(_PATIENCE_S)
        healed = heal_mesh(workers, "shrink")
        assert (healed.respawned, healed.removed) == ((), (0, 1))
        assert healed.mesh.sizes == {"hosts": 1, "gpus": 2}
        assert pids(healed.mesh) == before[2:]
        assert pids(healed.mesh.slice(hosts=0).rename(gpus="tp").flatten("rank")) == before[2:]
        first = workers.slice(hosts=0, gpus=0)
        first.hold.call_one(healed.mesh).get(_PATIENCE_S)
        assert first.others_pids.call_one().get(_PATIENCE_S) == before[2:]

        # Nothing is left without rank 3, too.
        os.kill(before[2], signal.SIGKILL)
        wait_until("its death", lambda: procs.slice(hosts=1).heal("shrink").removed == (0,))
        with pytest.raises(
            MeshDied, match=r"healing mesh failed on 2 ranks; first .*proc 1 of mesh on local0"
        ) as caught:
            procs.heal(["shrink"])
        assert sorted(caught.value.failures) == [1, 2]
        assert "signal 9" in str(caught.value.failures[2])

        # All of them come back, and the mesh is whole.
        healed = heal_mesh(workers)
        assert (healed.mesh, healed.respawned, healed.removed) == (workers, (1, 2), ())
        after = pids(workers)
        assert (after[0], after[3]) == (before[0], before[3])
    del faults[:]


def test_files_of_states_stay_while_an_actor_may_need_them(
    hosts: HostMesh, faults: list[MeshFailure], tmp_path: Path
) -> None:
    with hosts.spawn_procs(name="mesh") as procs, hosts.slice(hosts=0).spawn_procs(name="other") as others:
        workers = procs.spawn("worker", Worker, [])
        workers.add.call(5).get(_PATIENCE_S)
        assert procs.checkpoint(tmp_path / "states") == 2
        others.spawn("worker", Worker, []).add.call_one(1).get(_PATIENCE_S)
        for _ in range(4):
            workers.slice(hosts=0).add.call_one(1).get(_PATIENCE_S)
            assert procs.slice(hosts=0).checkpoint(tmp_path / "states") == 1
            assert others.checkpoint(tmp_path / "states") == 1
        folders = sorted(path.name for path in (tmp_path / "states").iterdir())
        assert folders == ["checkpoint-1", "checkpoint-8", "checkpoint-9", "checkpoint.json"]
        died = workers.add.options(on_error="collect").call(0)
        for proc in procs.procs:
            os.kill(proc.pid, signal.SIGKILL)
        died.exception(_PATIENCE_S)
        wait_until("their deaths", lambda: procs.heal("respawn").respawned or procs.heals == 2)
        wait_until("their return", lambda: procs.heal("respawn").respawned == () and procs.heals == 2)
        assert workers.add.call(0).get(_PATIENCE_S).values() == [9, 5]
    del faults[:]


def test_actors_get_the_state_of_the_last_checkpoint(
    hosts: HostMesh, faults: list[MeshFailure], tmp_path: Path
) -> None:
    for folder in (None, tmp_path / "states"):
        with hosts.spawn_procs(name="mesh") as procs:
            workers = procs.spawn("worker", Worker, [])
            for num in (1, 2, 3):
                workers.add.call(num).get(_PATIENCE_S)
                if num < 3:
                    assert procs.checkpoint(folder) == 2
            with pytest.raises(ActorDied):
                workers.slice(hosts=1).die.call_one().get(_PATIENCE_S)
            assert procs.heal("respawn").respawned == (1,)
            assert list(workers.add.call(0).get(_PATIENCE_S).values()) == [6, 3]
            if folder is not None:
                assert (folder.stat().st_mode & 0o777, (folder / "checkpoint-2").stat().st_mode & 0o777) == (0o700,) * 2
                files = sorted((folder / "checkpoint-2").iterdir())
                assert [path.name for path in files] == ["0-0.state", "0-1.state"]
                assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
                procs.checkpoint(folder)
                assert sorted(path.name for path in folder.iterdir()) == [
                    "checkpoint-2",
                    "checkpoint-3",
                    "checkpoint.json",
                ]
    assert faults == []


def test_what_a_killed_program_has_left_of_a_checkpoint_is_removed(hosts: HostMesh, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    with hosts.spawn_procs(name="mesh") as procs:
        workers = procs.spawn("worker", Worker, [])
        assert procs.checkpoint(folder) == 2
        (folder / "checkpoint-2").mkdir(0o700)
        left = ("checkpoint-2/7-7.state", "checkpoint-2/.0-0.state.0a1b2c3d4e5f", ".checkpoint.json.0a1b2c3d4e5f")
        for name in left:
            (folder / name).write_bytes(b"half")
        for number in range(5000):
            (folder / f"of the user {number}").touch()
        workers.add.call(4).get(_PATIENCE_S)
        assert procs.checkpoint(folder) == 2
        own = sorted(path.name for path in folder.iterdir() if not path.name.startswith("of the user"))
        assert own == ["checkpoint-1", "checkpoint-2", "checkpoint.json"]
        assert sorted(path.name for path in (folder / "checkpoint-2").iterdir()) == ["0-0.state", "0-1.state"]
        assert len(list(folder.iterdir())) == 5003


def test_a_checkpoint_that_cannot_be_written_names_its_folder_and_leaves_nothing(
    hosts: HostMesh, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        with hosts.spawn_procs(name="mesh") as procs:
            workers = procs.spawn("worker", Worker, [])
            assert procs.checkpoint(disk) == 2
            before = sorted(disk.rglob("*"))
            (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
            with pytest.raises(OSError, match=f"No space left on device: '{disk}"):
                procs.checkpoint(disk)
            (disk / "filler").unlink()
            assert sorted(disk.rglob("*")) == before
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            for folder in (disk, disk / "new"):
                with pytest.raises(OSError, match=f"Read-only file system: '{folder}") as refused:
                    procs.checkpoint(folder)
                assert "is read-only here: use another place" in refused.value.__notes__[0]
            workers.add.call(1).get(_PATIENCE_S)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


class Fragile(Actor):
    """Dies in its constructor if a file says so."""

    def __init__(self, file: str) -> None:
        print(f"life of {os.getpid()}", flush=True)
        if os.path.exists(file):
            raise ValueError("it is broken")

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_a_restart_policy_brings_procs_back_until_they_loop(
    hosts: HostMesh, faults: list[MeshFailure], tmp_path: Path
) -> None:
    policy = Restart("on-failure", max_restarts=2, window_s=600, backoff_s=(0.01, 0.02))
    ran = tmp_path / "ran"

    def bootstrap() -> None:
        with ran.open("a") as file:
            file.write(f"{monarch_hpc.context().proc.rank}")

    broken = tmp_path / "broken"
    with hosts.spawn_procs(name="mesh", restart=policy, bootstrap=bootstrap) as procs:
        fragile = procs.spawn("fragile", Fragile, str(broken))
        last = fragile.slice(hosts=1)
        pid = last.pid.call_one().get(_PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        wait_until("its restart", lambda: procs.heals == 1)
        again = last.pid.call_one().get(_PATIENCE_S)
        assert again != pid
        assert faults == []

        broken.touch()
        os.kill(again, signal.SIGKILL)
        wait_until("the end of the loop", lambda: faults)
        (failure,) = faults
        assert failure.where == "proc 1 of mesh on local1"
        assert "it is broken" in failure.cause
        assert "it was started again 2 times within 600 s, as its restart policy allows" in failure.cause
        assert f"life of {pid}" in failure.cause and failure.cause.count("life of") == 3
        with pytest.raises(ActorDied, match="as its restart policy allows"):
            last.pid.call_one().get(_PATIENCE_S)
        with pytest.raises(MeshDied, match="it is broken"):
            procs.heal("respawn")

        broken.unlink()
        assert procs.heal().respawned == (1,)
        assert last.pid.call_one().get(_PATIENCE_S) not in (pid, again)
    assert sorted(ran.read_text())[:1] == ["0"] and set(ran.read_text()[2:]) == {"1"}
    del faults[:]


def test_a_mesh_with_a_policy_is_stopped_while_it_restarts(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    procs = hosts.spawn_procs(name="mesh", restart=Restart("always", max_restarts=100, backoff_s=(0, 0)))
    for pid in pids(procs.spawn("worker", Worker, [])):
        os.kill(pid, signal.SIGKILL)
    procs.stop().get(_PATIENCE_S)
    assert faults == []


def test_several_die_at_once_and_several_threads_heal(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.spawn_procs({"gpus": 2}) as procs:
        workers = procs.spawn("worker", Worker, [3])
        before = pids(workers)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        died = workers.where.options(on_error="collect").call().get(_PATIENCE_S)
        assert len(died.failures()) == 4
        with ThreadPoolExecutor(3) as threads:
            healed = list(threads.map(lambda _: procs.heal("respawn"), range(3)))
        # One that comes late, when all are back, finds nothing to do.
        assert {one.respawned for one in healed} - {()} == {(0, 1, 2, 3)}
        assert not set(before) & set(pids(workers)) and procs.heals == 4
    assert faults == []


def test_arguments_that_are_not_kept_are_named(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    ownership = current_runtime().ownership
    left, ownership._left_bytes = ownership._left_bytes, 10_000
    try:
        with hosts.spawn_procs(name="mesh") as procs:
            small, large = (procs.spawn(name, Worker, [1] * num) for name, num in (("small", 10), ("large", 50_000)))
            small.where.call().get(_PATIENCE_S)
            with pytest.raises(ActorDied):
                large.slice(hosts=1).die.call_one().get(_PATIENCE_S)
            with pytest.raises(
                MeshDied, match=r"arguments of large, .*, were not kept: raise config key 'procs.kept_by"
            ):
                procs.heal("respawn")
            large.stop().get(_PATIENCE_S)
            assert procs.heal("respawn").respawned == (1,)
    finally:
        ownership._left_bytes = left
    assert faults == []


def test_a_mesh_goes_on_without_a_lost_host(faults: list[MeshFailure]) -> None:
    with (
        controlled(load({"procs.stop_s": 1.0, "heal.tries": 0}).config) as hosts,
        hosts.spawn_procs({"gpus": 2}, name="mesh", restart=Restart("always", backoff_s=(0, 0))) as procs,
    ):
        workers = procs.spawn("worker", Worker, [])
        before = pids(workers)
        os.kill(hosts.entries[1].pid, signal.SIGKILL)
        with pytest.raises(MeshDied, match="host local1 is lost"):
            workers.slice(hosts=1).where.call().get(_PATIENCE_S)
        with pytest.raises(MeshDied, match="local1") as caught:
            procs.heal("respawn")
        assert sorted(caught.value.failures) == [2, 3]
        healed = heal_mesh(workers)
        assert (healed.mesh.sizes, healed.removed) == ({"hosts": 1, "gpus": 2}, (2, 3))
        assert pids(healed.mesh) == before[:2]
        assert all("host local1 is lost" in cause for cause in healed.causes.values())
    del faults[:]


def test_what_cannot_be_healed_is_refused_in_words(hosts: HostMesh) -> None:
    with pytest.raises(RuntimeError, match="the program's own process"):
        heal_mesh(monarch_hpc.this_proc())
    with pytest.raises(TypeError, match="a mesh of procs or of actors"):
        heal_mesh(hosts)
    with pytest.raises(TypeError, match="restart"):
        hosts.spawn_procs(restart="always")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mpi=True"):
        hosts.spawn_procs(restart=Restart(), mpi=True)
    procs = hosts.spawn_procs()
    for policy, words in (("all", "unknown"), ((), "empty")):
        with pytest.raises(ValueError, match=words):
            procs.heal(policy)
    procs.initialized.get(_PATIENCE_S)
    procs.stop().get(_PATIENCE_S)
    with pytest.raises(RuntimeError, match="were stopped"):
        procs.heal()
    with pytest.raises(RuntimeError, match="only the program"):
        monarch_hpc.this_proc().checkpoint()
