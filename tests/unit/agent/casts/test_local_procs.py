"""The procs of a host, as casts find them: by run and mesh, and kept ones from all runs."""

from __future__ import annotations

from monarch_hpc.agent.casts.local_procs import LocalProcs
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.casts import Target


def target(run: str, mesh: int = 7) -> Target:
    return Target(run, mesh, Region.whole(Extent(["p"], [4])), {})


def procs() -> LocalProcs:
    known = LocalProcs()
    for rank in range(3):
        known.add("a", 7, rank, 100 + rank, 0)
    known.add("a", 8, 0, 200, 0)
    known.end("a", 7, 2, "killed")
    return known


def test_a_mesh_belongs_to_its_run_and_is_forgotten_with_it() -> None:
    known = procs()
    assert known.living(target("a")) == [(100, 0), (101, 1)]
    assert (known.living(target("b")), list(known.causes(target("b")))) == ([], [])
    known.forget_run("a")
    assert (known.living(target("a")), list(known.causes(target("a")))) == ([], [])


def test_a_kept_mesh_is_found_from_all_runs_and_outlives_its_own() -> None:
    known = procs()
    known.keep("a", 7)
    known.keep("a", 7)
    known.forget_run("a")
    assert known.living(target("b")) == known.living(target("a")) == [(100, 0), (101, 1)]
    assert list(known.causes(target("b"))) == [(2, "killed")]
    assert known.living(target("a", 8)) == []
    assert known.end("a", 7, 1, "killed too") == 101
    assert known.living(target("c")) == [(100, 0)]
    assert sorted(known.causes(target("c"))) == [(1, "killed too"), (2, "killed")]
