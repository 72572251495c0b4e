"""Commands are as Slurm expects, in an environment without the variables of the caller's job."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.config import FlagValue
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.commands import argv
from monarch_hpc.slurm.commands.argv import (
    flag_words,
    merge_options,
    mpi_step_argv,
    queue_argv,
    relay_argv,
    scrubbed,
    submit_argv,
    wide_step_argv,
)

OURS: dict[str, FlagValue] = {"nodes": "4", "no-requeue": True, "mem": "0", "partition": None, "exclusive": False}


def test_a_step_for_mpi_has_its_own_shape() -> None:
    flags: dict[str, FlagValue] = {"overlap": True, "mem": "0", "ntasks-per-node": "1", "mpi": "pmix", "gres": None}
    assert mpi_step_argv(7, ["n2", "n3"], 4, flags, ["task", "a b"]) == (
        *("srun", "--jobid=7", "--nodelist=n2,n3", "--job-name=mpi", "--quiet"),
        *("--overlap", "--mem=0", "--ntasks-per-node=4", "--mpi=pmix"),
        *("--nodes=2", "--ntasks=8", "--distribution=block", "task", "a b"),
    )


def test_steps_name_the_component_of_their_hosts() -> None:
    assert mpi_step_argv(7, ["n2"], 1, {}, ["task"], 1)[:4] == ("srun", "--jobid=7", "--het-group=1", "--nodelist=n2")
    assert relay_argv(7, "n2", ["x"])[:3] == ("srun", "--jobid=7", "--nodelist=n2")
    assert relay_argv(7, "n2", ["x"], 0)[:4] == ("srun", "--jobid=7", "--het-group=0", "--nodelist=n2")
    one = wide_step_argv(7, [2], ["look", "here"])
    assert one[:4] == ("srun", "--jobid=7", "--nodes=2", "--ntasks=2") and one[-2:] == ("look", "here")
    both = wide_step_argv(7, [1, 2], ["look"])
    cut = both.index(":")
    assert both[:5] == ("srun", "--jobid=7", "--het-group=0", "--nodes=1", "--ntasks=1") and both[cut - 1] == "look"
    assert both[cut + 1 : cut + 4] == ("--het-group=1", "--nodes=2", "--ntasks=2") and both[-1] == "look"


def test_a_planned_job_has_all_its_components() -> None:
    assert argv.test_only_argv([OURS]) == ("sbatch", "--test-only", "--nodes=4", "--no-requeue", "--mem=0", "--wrap=:")
    parts = ("--nodes=1", ":", "--nodes=2", "--gres=gpu:1")
    assert argv.test_only_argv([{"nodes": "1"}, {"nodes": "2", "gres": "gpu:1"}]) == (
        *("sbatch", "--test-only"),
        *parts,
        "--wrap=:",
    )


def test_the_environment_keeps_only_how_to_reach_slurmctld() -> None:
    given = {
        "PATH": "/bin",
        "HOME": "/home/alice",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "token",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "8",
        "SBATCH_ACCOUNT": "x",
        "SALLOC_PARTITION": "x",
        "SRUN_CPUS_PER_TASK": "8",
        "SQUEUE_STATES": "x",
        "SCANCEL_INTERACTIVE": "1",
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "SLURMD_NODENAME": "n1",
        "PMIXTURE": "kept: only looks alike",
    }
    assert set(scrubbed(given)) == {"PATH", "HOME", "SLURM_CONF", "SLURM_JWT", "PMIXTURE"}


def test_all_flags_of_a_job_are_in_its_script() -> None:
    assert submit_argv(Path("/x y/job.sh")) == ("sbatch", "--parsable", "/x y/job.sh")


def test_one_squeue_asks_for_all() -> None:
    assert queue_argv(["mh-b", "mh-a"])[-1] == "--name=mh-a,mh-b"


def test_flags_that_are_off_are_left_out() -> None:
    assert flag_words(OURS) == ["--nodes=4", "--no-requeue", "--mem=0"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["--nodes=4", "--no-requeue", "--mem=0"]),
        (("--nodes=2",), ["--nodes=2", "--no-requeue", "--mem=0"]),
        (("-N2", "-N 3"), ["--nodes=3", "--no-requeue", "--mem=0"]),
        (("--requeue",), ["--nodes=4", "--mem=0", "--requeue"]),
        (("--mem-per-cpu 2G",), ["--nodes=4", "--no-requeue", "--mem-per-cpu=2G"]),
        (("--no-kill=off",), ["--nodes=4", "--no-requeue", "--mem=0", "--no-kill=off"]),
        (("--comment=a b=c",), ["--nodes=4", "--no-requeue", "--mem=0", "--comment=a b=c"]),
        (("-H",), ["--nodes=4", "--no-requeue", "--mem=0", "--hold"]),
    ],
)
def test_a_later_option_replaces_ours(options: tuple[str, ...], words: list[str]) -> None:
    assert flag_words(merge_options(OURS, options)) == words


@pytest.mark.parametrize(
    "option", ["mem=0", "--", "--=x", "-", "-?", "", "--job-name=x", "-J x", "--output=/x", "-a 0-3", "--comment=a\nb"]
)
def test_what_is_no_option_or_must_stay_ours_is_refused(option: str) -> None:
    with pytest.raises(ConfigError) as failure:
        merge_options(OURS, [option])
    assert failure.value.source == "--slurm"
