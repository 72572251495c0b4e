from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.config import Config
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.nodes.exclusions import Exclusion, Exclusions, exclude_bad_hosts
from monarch_hpc.slurm.script import Request, plan_job_flags

REQUEST = Request("0123456789abcdef0123456789abcdef", "dev", Path("/shared/01234567"), "2")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load({"paths.state": str(tmp_path)}).config


def test_a_list_with_reasons_and_times(tmp_path: Path) -> None:
    listed = Exclusions(tmp_path)
    listed.add("n10", "GPU 3 'fell' $(off)\n", 50.0)
    listed.add("n2", "", 60.0)
    listed.add("n2", "slow", 70.0)
    assert Exclusions(tmp_path).all() == [
        Exclusion("n10", "GPU 3 'fell' $(off)\n", 50.0),
        Exclusion("n2", "slow", 70.0),
    ]
    assert (listed.remove("n10"), listed.remove("n10"), listed.remove("../record")) == (True, False, False)
    assert [one.host for one in listed.all()] == ["n2"]
    assert stat.S_IMODE((tmp_path / "excluded" / "n2.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["", "../n1", "n1/x", "-n1", "n 1", "n1\n", "n" * 300])
def test_what_is_no_host_makes_no_file(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError):
        Exclusions(tmp_path).add(host, "", 1.0)
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_are_no_entries(tmp_path: Path) -> None:
    listed = Exclusions(tmp_path)
    listed.add("n5", "slow", 1.0)
    listed.remove("n5")
    for name, text in (("n1.json", "[]"), ("n2.json", '{"schema": 9}'), ("notes.txt", "x"), ("$(x).json", "{}")):
        (tmp_path / "excluded" / name).write_text(text)
        (tmp_path / "excluded" / name).chmod(0o600)
    assert listed.all() == []


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ((), ("--exclude=n[2,7]",)),
        (("--exclude=n[1-2]",), ("--exclude=n[1-2,7]",)),
        (("-xn3",), ("--exclude=n[3,2,7]",)),
        (("--nodelist=n2",), ("--exclude=n7",)),
        (("-w n[2,7]",), ()),
        (("--exclude=/home/alice/bad",), ()),
    ],
)
def test_it_is_added_to_what_the_user_excludes(
    config: Config, options: tuple[str, ...], added: tuple[str, ...]
) -> None:
    for host in ("n7", "n2"):
        Exclusions(config.paths.state).add(host, "slow", 1.0)
    flags = plan_job_flags(config, replace(REQUEST, options=options))
    assert exclude_bad_hosts(config, flags)[0] == added


def test_where_the_site_forbids_it_the_request_stays(config: Config) -> None:
    Exclusions(config.paths.state).add("n7", "slow", 1.0)
    strict = replace(config, slurm=replace(config.slurm, exclude_allowed=False))
    assert exclude_bad_hosts(strict, plan_job_flags(strict, REQUEST)) == ((), [Exclusion("n7", "slow", 1.0)])


def test_without_a_list_nothing_changes(config: Config) -> None:
    assert exclude_bad_hosts(config, plan_job_flags(config, REQUEST)) == ((), [])
    assert list(config.paths.state.iterdir()) == []
