"""The site's rules are told before sbatch, with the key or option to change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.config import Config
from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.checks.site_rules import check_place, check_site_rules, limits_in_words
from monarch_hpc.slurm.commands.through_client import open_slurm
from monarch_hpc.slurm.script import Request, plan_job_flags

HOME = Path("/home/alice")
SHARED = {"paths.shared": "/work/alice"}


def config(flags: Mapping[str, object]) -> Config:
    return load_config({"HOME": str(HOME)}, Path("/"), "login", None, flags).config


def request(num_hosts: str = "4", *options: str) -> Request:
    return Request("0" * 32, "dev", Path("/work/alice/x"), num_hosts, None, options)


def check(flags: Mapping[str, object], asked: Request) -> list[str]:
    loaded = config(flags)
    return check_site_rules(loaded, plan_job_flags(loaded, asked), HOME)


def test_without_rules_nothing_is_said() -> None:
    assert check({}, request("4", "--nodelist=n1", "--exclude=n2")) == []


def test_what_the_site_demands_is_named_all_at_once_and_an_option_satisfies_it() -> None:
    rules = {"slurm.required": ["account", "qos", "time"]}
    with pytest.raises(ConfigError, match=r"jobs here need --account \(-A\), --qos \(-q\)$"):
        check(rules, request())
    assert check({**rules, "slurm.account": "a"}, request("4", "--qos=q")) == []


@pytest.mark.parametrize("flag", ["nodelist", "exclude"])
def test_hosts_by_name_are_refused_where_the_site_deletes_such_jobs(flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"may not ask for hosts by name, drop --{flag}"):
        check({f"slurm.{flag}_allowed": False}, request("4", f"--{flag}=n1"))


@pytest.mark.parametrize(("home", "words"), [("none", "is not mounted"), ("ro", "is read-only")])
def test_a_home_that_hosts_cannot_write_holds_no_allocation(home: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"paths\.shared = /home/alice/.*which {words} on compute nodes; set it"):
        check({"paths.home_on_compute": home}, request())
    assert check({"paths.home_on_compute": home, **SHARED}, request()) == []


def test_a_time_above_the_limit_for_so_many_hosts_is_a_warning() -> None:
    bins = {"slurm.time_by_nodes": {"1": 120, "92": 360}}
    assert check({**bins, "slurm.time_min": 120}, request("91")) == []
    assert check({**bins, "slurm.time_min": 360}, request("92")) == []
    assert check({**bins, "slurm.time_min": 300}, request("2-100")) == [
        "generic allows 120 min for 2-100 hosts, and 300 min from 92 hosts on; Slurm may refuse --time=300"
    ]
    (line,) = check({**bins, "slurm.time_min": 500}, request("200"))
    assert line == "generic allows 360 min for 200 hosts; Slurm may refuse --time=500"


def test_the_number_of_jobs_is_added_to_slurms_words() -> None:
    limits = config({"limits.running": {"debug": 1}, "limits.submitted": {"q": 5}})
    said = "debug allows 1 of a user's jobs running, says the profile of generic"
    assert limits_in_words("QOSMaxJobsPerUserLimit", limits, {"partition": "debug"}) == said
    assert "q allows 5" in limits_in_words("QOSMaxSubmitJobPerUserLimit", limits, {"qos": "q", "partition": "debug"})
    assert limits_in_words("QOSMaxJobsPerUserLimit", limits, {"partition": "other"}) == ""
    assert limits_in_words("Priority", limits, {"partition": "debug"}) == ""


def test_where_compute_nodes_may_not_ask_for_jobs_programs_there_are_told_what_to_do() -> None:
    forbids = config({"login.submit_from_compute": False, "site": "vista"})
    with pytest.raises(ConfigError, match=r"on compute node n3, from which vista takes no jobs: .*attach\(NAME\)"):
        check_place(forbids, open_slurm(forbids, {"SLURMD_NODENAME": "n3"}))
    # A shell of salloc on a login node is in a job, too.
    check_place(forbids, open_slurm(forbids, {"SLURM_JOB_ID": "7"}))
    check_place(config({}), open_slurm(config({}), {"SLURMD_NODENAME": "n3"}))
