"""Questions about runs, ranks and hosts that do not exist."""

from __future__ import annotations

import pytest

from monarch_hpc.cli.tables.absence import explain_absence
from monarch_hpc.wire.tables.procs import RunProcess

RUNS = ["aaaa", "bbbb"]
PROGRAM = RunProcess("aaaa", -1, 0, "login", 5, "ready", "")
PROCS = [RunProcess("aaaa", 1, rank, f"n{rank // 2}", 10 + rank, "ready", "") for rank in (0, 1, 2, 3, 7)]
OTHER = RunProcess("bbbb", 1, 9, "n0", 99, "ready", "")


@pytest.mark.parametrize(
    ("where", "option", "sentence"),
    [
        ({"run": "nosuch"}, "--run", "there is no run nosuch; there are: aaaa, bbbb"),
        ({"run": "nosuch", "rank": [0]}, "--run", "there is no run nosuch; there are: aaaa, bbbb"),
        ({"rank": [98, 99]}, "--rank", "no proc has rank 98-99; there are 0-3,7,9"),
        ({"run": "aaaa", "rank": [9]}, "--rank", "no proc of run aaaa has rank 9; there are 0-3,7"),
        ({"host": "nosuch"}, "--host", "no proc is on host nosuch; there are: n0, n1, n3"),
        ({"host": "n1", "rank": [0]}, "--rank", "no proc on host n1 has rank 0; there are 2-3"),
        ({"run": "bbbb", "host": "n1"}, "--host", "no proc of run bbbb is on host n1; there are: n0"),
        ({"host": "login"}, "--host", "no proc is on host login; there are: n0, n1, n3"),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(where: dict[str, object], option: str, sentence: str) -> None:
    assert explain_absence([PROGRAM, *PROCS, OTHER], RUNS, where) == (option, sentence)


@pytest.mark.parametrize(
    "where", [{}, {"run": "aaaa"}, {"run": "gone"}, {"rank": [3, 99]}, {"run": "bbbb", "host": "n0", "rank": [9]}]
)
def test_what_exists_is_not_refused(where: dict[str, object]) -> None:
    assert explain_absence([PROGRAM, *PROCS, OTHER], RUNS, where, ended=["gone"]) is None


def test_where_the_procs_are_unknown_only_a_run_is_refused() -> None:
    assert explain_absence([], RUNS, {"rank": [99], "host": "nosuch"}) is None
    assert explain_absence([], [], {"run": "nosuch"}) == ("--run", "there is no run nosuch; none goes on")
    found = explain_absence([], [f"r{number}" for number in range(12)], {"run": "nosuch"})
    assert found is not None and found[1].endswith("r8, r9 and 2 more")
