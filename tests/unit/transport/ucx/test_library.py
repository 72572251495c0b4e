"""The choice of libucp, and the warnings about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.transport.ucx.library import (
    Candidate,
    Refusal,
    find_warnings,
    name_transports,
    plan_candidates,
)

WHEEL = Path("/venv/site-packages/libucx")
SYSTEM = "/usr/lib/libucp.so.0.0.0"
MPI = ["/usr/lib/libmpi.so.40", "/usr/lib/libucm.so.0.0.0", "/usr/lib/libucs.so.0.0.0", SYSTEM]


def same(path: str) -> str:
    return path


def test_the_loader_is_asked_before_the_wheel() -> None:
    loader = Candidate("libucp.so.0", "the system's or a module's")
    wheel = Candidate(f"{WHEEL}/lib/libucp.so.0", "the package libucx")
    assert plan_candidates("", [], WHEEL) == (loader, wheel)
    assert plan_candidates("", [], None) == (loader,)


def test_a_named_library_has_no_substitute() -> None:
    assert plan_candidates("/opt/ucx/lib/libucp.so", [], WHEEL) == (Candidate("/opt/ucx/lib/libucp.so", "ucx.library"),)


def test_a_library_that_is_mapped_already_is_the_only_one() -> None:
    assert plan_candidates("", MPI, WHEEL) == (Candidate(SYSTEM, "already in this process"),)


def test_a_part_that_is_mapped_decides_for_its_whole() -> None:
    """An MPI may use libuct without libucp: a libucp from another folder would be bound to it."""
    assert plan_candidates("", ["/opt/ucx/lib/libuct.so.0"], WHEEL) == (
        Candidate("/opt/ucx/lib/libucp.so.0", "already in this process"),
    )


@pytest.mark.parametrize(
    "path", ["/x/libucp-1a2b3c4d.so.0", "/x/libucp.so.0.bak", "/x/libucpp.so", "/x/ucx/libuct_ib.so"]
)
def test_a_renamed_copy_binds_nobody(path: str) -> None:
    plan = plan_candidates("", [path], None)
    assert isinstance(plan, tuple)
    assert plan[0].path == "libucp.so.0"


def test_two_ucx_in_one_process_are_refused() -> None:
    plan = plan_candidates("/opt/ucx/lib/libucp.so", MPI, WHEEL, same)
    assert isinstance(plan, Refusal)
    assert "/opt/ucx/lib/libucp.so" in plan.reason
    assert SYSTEM in plan.reason


def test_a_named_link_to_the_mapped_library_is_the_mapped_library() -> None:
    links = {"/usr/lib/libucp.so": SYSTEM}
    plan = plan_candidates("/usr/lib/libucp.so", MPI, WHEEL, lambda path: links.get(path, path))
    assert plan == (Candidate("/usr/lib/libucp.so", "ucx.library"),)


def test_transports_are_the_built_in_ones_and_the_modules() -> None:
    names = ["libuct_cma.so", "libuct_cma.so.0", "libuct_ib.so.0.0.0", "libucm_cuda.so", "libuct_rdmacm.a", "notes"]
    assert name_transports(names) == ("cma", "ib", "posix", "self", "sysv", "tcp")
    assert name_transports([]) == ("posix", "self", "sysv", "tcp")


def test_a_network_that_the_library_cannot_use_is_told() -> None:
    wheel, site = ("cma", "tcp"), ("cma", "ib", "ib_mlx5", "tcp")
    assert find_warnings(wheel, [], ["eth0", "lo"]) == ()
    assert find_warnings(site, ["mlx5_0"], ["ib0", "lo"]) == ()
    (infiniband,) = find_warnings(wheel, ["mlx5_1", "mlx5_0"], ["ib0"])
    assert "mlx5_0, mlx5_1" in infiniband
    (slingshot,) = find_warnings(site, ["cxi0"], ["hsn0", "hsn1"])
    assert "hsn0, hsn1" in slingshot
