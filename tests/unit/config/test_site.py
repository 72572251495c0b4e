from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.config.document import parse_document
from monarch_hpc.config.site import Profile, choose_profile, find_cluster_name, parse_profile
from monarch_hpc.core.errors import ConfigError


def profile(name: str, match: str) -> Profile:
    return parse_profile(
        parse_document(f"site: {name}\nchecked: 2026-01-01\nsource: its pages\nmatch: {match}\n", name), name
    )


PROFILES = [
    profile("perl", "{environment: {NERSC_HOST: perlmutter}}"),
    profile("juwels", "{environment: {SYSTEMNAME: 'juwels*', USER: alice}, hostname: ['jw*']}"),
    profile("lab", "{cluster: [lab, 'lab-*']}"),
    profile("login", "{hostname: ['login*.site']}"),
    profile("trio", "{environment: {CLUSTER_NAME: [one, 'two*']}}"),
]


@pytest.mark.parametrize(
    ("environ", "hostname", "cluster_name", "expected"),
    [
        ({}, "elsewhere", None, None),
        ({"NERSC_HOST": "perlmutter"}, "login1.site", "lab", "perl"),
        ({"NERSC_HOST": "cori"}, "elsewhere", None, None),
        ({"SYSTEMNAME": "juwelsbooster", "USER": "alice"}, "x", None, "juwels"),
        ({"SYSTEMNAME": "juwelsbooster"}, "x", None, None),
        ({}, "jwlogin01", None, "juwels"),
        ({}, "login1.site", "lab", "lab"),
        ({}, "login1.site", "lab-2", "lab"),
        ({}, "login1.site", "other", "login"),
        ({"CLUSTER_NAME": "one"}, "x", None, "trio"),
        ({"CLUSTER_NAME": "two-b"}, "x", None, "trio"),
        ({"CLUSTER_NAME": "three"}, "x", None, None),
    ],
)
def test_a_variable_says_more_than_the_cluster_and_that_more_than_a_host_name(
    environ: Mapping[str, str], hostname: str, cluster_name: str | None, expected: str | None
) -> None:
    chosen = choose_profile(PROFILES, environ, hostname, cluster_name)
    assert (chosen.name if chosen else None) == expected


def test_two_profiles_that_match_alike_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"lab, twin: several profiles match; set MONARCH_HPC_SITE"):
        choose_profile([*PROFILES, profile("twin", "{cluster: [lab]}")], {}, "h", "lab")


@pytest.mark.parametrize(
    "text",
    [
        "site: x\nchecked: 2026-01-01\nsource: its pages\n",
        "site: x\nchecked: 2026-01-01\nmatch: {}\n",
        "site: x\nchecked: 2026-01-01\nsource: 7\nmatch: {}\n",
        "site: x\nsource: its pages\nmatch: {}\n",
        "checked: 2026-01-01\nsource: its pages\nmatch: {}\n",
        "site: x\nchecked: soon\nsource: its pages\nmatch: {}\n",
        "site: x\nchecked: 2026-01-01\nsource: its pages\nmatch: {cluster: lab}\n",
        "site: x\nchecked: 2026-01-01\nsource: its pages\nmatch: {clusters: [lab]}\n",
        "site: x\nchecked: 2026-01-01\nsource: its pages\nmatch: {environment: [A]}\n",
        "site: x\nchecked: 2026-01-01\nsource: its pages\nmatch: {environment: {A: 1}}\n",
        "site: x\nchecked: 2026-01-01\nsource: its pages\nmatch: [lab]\n",
    ],
)
def test_a_profile_says_its_name_its_marks_and_its_date(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_profile(parse_document(text, "x.yaml"), "x.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ClusterName=lab\n", "lab"),
        ("# ClusterName=old\nclustername = lab # the lab\n", "lab"),
        ("SlurmctldHost=login\n", None),
        ("ClusterName=\n", None),
    ],
)
def test_the_cluster_name_is_read_from_slurm_conf(tmp_path: Path, text: str, expected: str | None) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(text)
    assert find_cluster_name({"SLURM_CONF": str(conf)}) == expected
    assert find_cluster_name({}, [str(tmp_path / "missing"), str(conf)]) == expected


def test_the_environment_says_the_cluster_name_first_and_no_slurm_is_none(tmp_path: Path) -> None:
    assert find_cluster_name({"SLURM_CLUSTER_NAME": "lab", "SLURM_CONF": "/nonexistent"}) == "lab"
    assert find_cluster_name({"SLURM_CONF": str(tmp_path / "missing")}) is None
