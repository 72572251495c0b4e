from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.ownership import Ownership
from monarch_hpc.telemetry.recorder import Recorder

OWNER, OTHER = 7, 8
ACTORS, PROCS = 100, 1 << 20


def ref(rank: int) -> ProcRef:
    return ProcRef(1, rank, f"n{rank}", rank, 100 + rank, 1000 + rank, ())


def ownership(*actor_owners: int) -> Ownership:
    """Procs of OWNER, and an actor in each of them for each of *actor_owners*."""
    made = Ownership(Recorder())
    procs = {rank: ref(rank) for rank in range(2)}
    made.add(PROCS, OWNER, "staff", procs, lambda gone: gone())
    for number, owner in enumerate(actor_owners):
        made.add(ACTORS + number, owner, f"worker{number}", procs)
    return made


def test_the_death_of_a_proc_without_actors_is_the_owners() -> None:
    made = ownership()
    assert made.lose(1001) == []
    assert [made.fail(PROCS, 1), made.fail(PROCS, 1)] == [OWNER, None]


def test_who_hears_of_his_actors_is_not_told_of_the_proc_whatever_comes_first() -> None:
    made = ownership(OWNER)
    assert made.fail(PROCS, 1) is None
    ((mesh, rank),) = made.lose(1001)
    assert (mesh.name, rank, mesh.where(1)) == ("worker0", 1, "actor worker0[1] on n1")
    made = ownership(OWNER)
    assert len(made.lose(1001)) == 1
    assert made.fail(PROCS, 1) is None


def test_actors_of_others_do_not_hide_the_death_of_a_proc() -> None:
    made = ownership(OTHER)
    assert len(made.lose(1001)) == 1
    assert made.fail(PROCS, 1) == OWNER


def test_an_actor_that_failed_or_was_stopped_does_not_hide_it_either() -> None:
    made = ownership(OWNER, OWNER)
    assert made.fail(ACTORS, 1) == OWNER
    made.stop(ACTORS + 1, 1001)
    assert made.fail(PROCS, 1) == OWNER


def test_a_mesh_of_procs_knows_its_end() -> None:
    ended: list[Callable[[], None]] = []
    made = Ownership(Recorder())
    made.add(PROCS, OWNER, "staff", {0: ref(0)}, ended.append)
    made.add(ACTORS, OTHER, "worker", {0: ref(0)})
    (mesh,) = made.of(OWNER)
    assert mesh.where(0) == "proc 0 of staff on n0"
    assert mesh.end is not None
    gone = list[int]().clear
    mesh.end(gone)
    made.remove(PROCS)
    assert (ended, made.of(OWNER), [other.actor for other in made.of(OTHER)]) == ([gone], [], [ACTORS])
