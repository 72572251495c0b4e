"""Each shipped profile: the marks that choose it, and the scripts that it gives, byte for byte.

`BLESS=1 pytest tests/golden` writes the files anew; read the difference before committing it. A script of another kind
is one more row of `SCRIPTS`: its name, and the function that renders it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.config.load import Loaded, load_config
from monarch_hpc.core.storage.assets import asset
from monarch_hpc.slurm import Request, plan_job_flags, render_script
from monarch_hpc.slurm.batch import BatchRequest, plan_batch_flags, render_batch
from monarch_hpc.slurm.checks.site_rules import check_site_rules

FOLDER = Path(__file__).parent / "sites"
HOME = Path("/home/alice")

# What the login nodes of each site have: environment, host name, Slurm's cluster name.
MARKS: Mapping[str, tuple[Mapping[str, str], str, str | None]] = {
    "alps": ({"CLUSTER_NAME": "clariden"}, "clariden-ln001", None),
    "anvil": ({"RCAC_CLUSTER": "anvil"}, "login03.anvil.rcac.purdue.edu", "anvil"),
    "archer2": ({}, "ln04", "archer2"),
    "delta": ({}, "dt-login02.delta.ncsa.illinois.edu", "delta"),
    "frontier": ({"LMOD_SYSTEM_NAME": "frontier"}, "login09", None),
    "juwels": ({"SYSTEMNAME": "juwelsbooster"}, "jwlogin23.juwels", None),
    "leonardo": ({}, "login02.leonardo.local", None),
    "lumi": ({}, "uan03", "lumi"),
    "marenostrum5": ({"BSC_MACHINE": "mn5"}, "alogin1", None),
    "perlmutter": ({"NERSC_HOST": "perlmutter", "LMOD_SITE_NAME": "perlmutter"}, "login25", "perlmutter"),
    "slurmlab": ({}, "login", "slurmlab"),
    "vista": ({"TACC_SYSTEM": "vista"}, "login1.vista.tacc.utexas.edu", None),
}

# What a user of the site would ask for: keys of the configuration, and GPUs on each host.
ASKED: Mapping[str, tuple[Mapping[str, object], str | None]] = {
    "alps": ({"slurm.account": "g123", "slurm.partition": "normal"}, None),
    "anvil": ({"slurm.account": "phy1", "slurm.partition": "gpu"}, "4"),
    "archer2": (
        {
            "slurm.account": "t01",
            "slurm.partition": "standard",
            "slurm.reservation": "course",
            "paths.shared": "/work/t01/t01/alice",
        },
        None,
    ),
    "delta": ({"slurm.account": "bbka-delta-gpu", "slurm.partition": "gpuA100x4"}, "4"),
    "frontier": ({"slurm.account": "abc123", "slurm.partition": "batch"}, "8"),
    "juwels": ({"slurm.account": "proj", "slurm.partition": "booster"}, "4"),
    "leonardo": ({"slurm.account": "budget", "slurm.qos": "boost_qos_dbg"}, "4"),
    "lumi": ({"slurm.account": "project_123", "slurm.partition": "dev-g"}, "8"),
    "marenostrum5": ({"slurm.account": "ehpc1", "slurm.qos": "acc_ehpc", "slurm.partition": "acc"}, "4"),
    "perlmutter": ({"slurm.account": "m1234", "slurm.constraint": "gpu&hbm80g", "slurm.qos": "regular"}, "4"),
    "slurmlab": ({}, "4"),
    "vista": ({"slurm.account": "A-1", "slurm.partition": "gh"}, "1"),
}


Script = tuple[str, dict[str, FlagValue]]
"""A script, and the flags of its job."""


def request(config: Config, gpus: str | None) -> Request:
    allocation = "7f3a91c20123456789abcdef01234567"
    return Request(allocation, "dev", config.paths.shared / allocation[:8], "4", gpus, ())


def alloc_script(config: Config, gpus: str | None) -> Script:
    asked = request(config, gpus)
    return render_script(config, asked), plan_job_flags(config, asked)


def run_script(config: Config, gpus: str | None) -> Script:
    asked = BatchRequest(("train.py",), "train", Path("/home/alice/work"), "4", gpus)
    return render_batch(config, asked), plan_batch_flags(config, asked)


SCRIPTS: Mapping[str, Callable[[Config, str | None], Script]] = {"alloc": alloc_script, "run": run_script}


def load(site: str, flags: Mapping[str, object]) -> Loaded:
    environment, hostname, cluster = MARKS[site]
    given = {"agent.python": "/opt/venv/bin/python", **flags}
    return load_config({"HOME": str(HOME), **environment}, Path("/"), hostname, cluster, given, admin=Path("/none"))


def test_each_profile_has_its_marks_and_a_request() -> None:
    shipped = {path.stem for path in asset("configs", "sites").glob("*.yaml")}
    assert shipped == set(MARKS) == set(ASKED)
    assert len(shipped) >= 12


@pytest.mark.parametrize("site", MARKS)
def test_its_marks_choose_a_profile_that_says_when_and_where_it_was_checked(site: str) -> None:
    loaded = load(site, {})
    assert loaded.config.site == site
    assert loaded.profile is not None and loaded.profile.name == site
    assert loaded.profile.checked.year >= 2026 and loaded.profile.source
    assert loaded.origin("site").startswith(f"configs/sites/{site}.yaml:")


@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("site", MARKS)
def test_the_script_of_a_site_is_as_it_was_read(site: str, kind: str) -> None:
    flags, gpus = ASKED[site]
    config = load(site, flags).config
    script, asked_flags = SCRIPTS[kind](config, gpus)
    assert check_site_rules(config, asked_flags, HOME) == []
    golden = FOLDER / f"{site}-{kind}.sbatch"
    if os.environ.get("BLESS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(script)
    assert script == golden.read_text()
