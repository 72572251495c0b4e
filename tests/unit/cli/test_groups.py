"""Groups on the command line of `alloc`, read from the script that it would submit."""

from __future__ import annotations

import pytest

from monarch_hpc.cli.main import main
from tests.unit.cli.test_alloc import flags, home

__all__ = ["home"]


def test_groups_are_components_with_what_is_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    typed = "-N 1 -t 2h -p cpu -A phys -w n9 : -N 2 --gpus-per-node 4 --group gpu -p gpu --slurm --mem=0 : -x n3"
    found = flags(capsys, "dev", *typed.split())
    first, second = (index for index, flag in enumerate(found) if flag == "hetjob")
    parts = [found[:first], found[first + 1 : second], found[second + 1 :]]
    assert len({part[0] for part in parts}) == 1 and found[0].startswith("--job-name=mh-")
    for part in parts:
        assert {"--time=120", "--account=phys", "--no-kill", "--exclusive"} <= set(part)
    own = ("--nodes", "--partition", "--gpus-per-node", "--mem", "--exclude", "--nodelist", "--output", "--signal")
    assert [[flag.split("/")[0] for flag in part if flag.startswith(own)] for part in parts] == [
        ["--nodes=1", "--partition=cpu", "--signal=B:USR2@360", "--output=", "--nodelist=n9"],
        ["--nodes=2", "--partition=gpu", "--gpus-per-node=4", "--mem=0"],
        ["--nodes=1", "--partition=cpu", "--exclude=n3"],
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--group gpu", "there is one group only"),
        ("--group a : --group a", "two groups have this name"),
        ("--group 1 : -N2", "two groups have this name"),
        (": --group -x", "a name has letters"),
        (": -t 30", "No such option"),
        (": dev", "unexpected extra argument"),
        ("--estimate : -N2", "sizes of one group"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: str, problem: str
) -> None:
    assert main(["alloc", *arguments.split()]) == 64
    assert problem in capsys.readouterr().err
