"""The batch script, byte for byte: whoever changes the template sees here what is submitted.

`BLESS=1 pytest tests/golden` writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm import Group, Request, render_salloc, render_script

FOLDER = Path(__file__).parent
ID = "7f3a91c20123456789abcdef01234567"

PLAIN = Request(ID, "dev", Path("/scratch/alice/7f3a91c2"), "4", "2", ())
HOSTILE = Request(
    ID,
    "dev",
    Path('/scratch/a b/$(touch x)/`y`/"q"/100%j/it\'s/7f3a91c2'),
    "2-4",
    "a100:4",
    ("--nodes=3", "--comment=$HOME # \\ not a comment", "--requeue"),
)
GROUPS = replace(
    PLAIN,
    groups=(
        Group("cpu", "1", None, ("--partition=cpu",)),
        Group("gpu", "2-4", "a100:4", ("--partition=gpu", "--comment=a b", "--signal=B:USR2@60")),
    ),
)
PROFILE = {
    "slurm.account": "phys & co",
    "slurm.gpus_form": "gres",
    "slurm.job_flags": {"exclusive": None, "mem": "0"},
    "slurm.step_flags": {"mpi": None, "network": "no_vni"},
    "agent.prologue": ["module load cuda/12.4", 'export A="b c"'],
    "agent.python": "/opt/py 3/bin/python",
}


@pytest.mark.parametrize(
    ("name", "request_", "flags"),
    [
        ("plain", PLAIN, {"agent.python": "/opt/venv/bin/python"}),
        ("hostile", HOSTILE, PROFILE),
        ("groups", GROUPS, {"agent.python": "/opt/venv/bin/python", "slurm.account": "phys"}),
    ],
)
def test_the_script_is_as_it_was_read(name: str, request_: Request, flags: dict[str, object]) -> None:
    config = load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, flags).config
    script = render_script(config, request_)
    golden = FOLDER / f"alloc-{name}.sbatch"
    if os.environ.get("BLESS"):
        golden.write_text(script)
    assert script == golden.read_text()


@pytest.mark.parametrize(("name", "request_", "flags"), [("plain", PLAIN, {}), ("hostile", HOSTILE, PROFILE)])
def test_so_is_the_script_that_holds_the_hosts_by_salloc(
    name: str, request_: Request, flags: dict[str, object]
) -> None:
    config = load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, flags).config
    script = render_salloc(config, request_)
    golden = FOLDER / f"alloc-{name}.salloc"
    if os.environ.get("BLESS"):
        golden.write_text(script)
    assert script == golden.read_text()


def test_salloc_takes_one_group_of_hosts() -> None:
    config = load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, {}).config
    with pytest.raises(ConfigError, match="takes one group of hosts"):
        render_salloc(config, GROUPS)
