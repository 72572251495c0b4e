"""Changes of allocations: what is asked of Slurm, and which hosts go."""

from __future__ import annotations

import pytest

from monarch_hpc.cli.allocations.extend import command as extend
from monarch_hpc.cli.allocations.extend import parse_change
from monarch_hpc.cli.allocations.shrink import plan_shrink
from monarch_hpc.cli.main import main
from monarch_hpc.core.errors import AllocationError, ConfigError


@pytest.mark.parametrize(
    ("text", "change"),
    [("+30m", "+30"), ("-30m", "-30"), ("2h", "120"), ("+90s", "+2"), ("-90s", "-1"), ("1-0", "1440"), ("+45", "+45")],
)
def test_times_in_minutes(text: str, change: str) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize("text", ["", "+", "soon", "+0", "-30s", "++5", "30m; true"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_change(text)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["dev", "-2h"], ("dev", "-2h")),
        (["dev", "-2h", "--json"], ("dev", "-2h")),
        (["--quiet", "-30m"], ("-30m",)),
        (["--", "dev", "-2h"], ("dev", "-2h")),
        (["dev", "+2h"], ("dev", "+2h")),
    ],
)
def test_time_to_take_away_is_no_option(words: list[str], read: tuple[str, ...]) -> None:
    assert extend.make_context("extend", words).params["words"] == read


def test_an_option_that_extend_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extend", "dev", "-x"]) == 64
    assert "-x" in capsys.readouterr().err


def host(rank: int, procs: int = 0, state: str = "alive", problem: str = "") -> dict[str, object]:
    return {"rank": rank, "name": f"n{rank}", "head": rank == 0, "procs": procs, "state": state, "problem": problem}


def freed(hosts: list[dict[str, object]], num_hosts: int, *, force: bool = False) -> list[str]:
    plan = plan_shrink("dev", hosts, num_hosts, force=force)
    assert {**plan.kept, **plan.freed} == {rank: f"n{rank}" for rank in range(len(hosts))}
    assert len(plan.kept) == num_hosts
    return list(plan.freed.values())


def test_lost_hosts_go_first_then_idle_ones_then_the_last() -> None:
    hosts = [host(0), host(1, state="lost"), host(2), host(3, procs=2), host(4, problem="no space")]
    assert freed(hosts, 5) == []
    assert freed(hosts, 4) == ["n4"]
    assert freed(hosts, 3) == ["n1", "n4"]
    assert freed(hosts, 2) == ["n1", "n2", "n4"]
    assert freed(hosts, 1, force=True) == ["n1", "n2", "n3", "n4"]


def test_the_first_host_stays_and_busy_ones_only_go_by_force() -> None:
    hosts = [host(0), host(1, procs=2), host(2, procs=1)]
    with pytest.raises(AllocationError, match="1 on n2"):
        plan_shrink("dev", hosts, 2, force=False)
    assert freed(hosts, 1, force=True) == ["n1", "n2"]


def test_an_allocation_cannot_grow() -> None:
    with pytest.raises(AllocationError, match="has 1 hosts, fewer than 2"):
        plan_shrink("dev", [host(0)], 2, force=False)
