"""The batch script of a program, byte for byte; see `test_alloc_script`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_hpc.config.load import load_config
from monarch_hpc.slurm.batch import BatchRequest, render_batch, render_function
from tests.golden.test_alloc_script import FOLDER, PROFILE

PLAIN = BatchRequest(("train.py", "--lr", "3e-4"), "train", Path("/home/alice/work"), "4", "2")
HOSTILE = BatchRequest(
    ("--", "./it's a tool", "$(touch x)", "two\nlines", "", "`y`", '"q"', "\\", "é"),
    'a "job"',
    Path("/home/alice/a b/$HOME"),
    array="0-63%8",
    dependency="afterok:12:13",
    requeues=10,
    options=("--comment=$HOME # \\ not a comment", "--output=/scratch/%j.out"),
    dropped=("signal", "ntasks-per-node"),
)


@pytest.mark.parametrize(
    ("name", "request_", "flags"),
    [("plain", PLAIN, {"agent.python": "/opt/venv/bin/python"}), ("hostile", HOSTILE, PROFILE)],
)
def test_the_script_is_as_it_was_read(name: str, request_: BatchRequest, flags: dict[str, object]) -> None:
    config = load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, flags).config
    script = render_batch(config, request_)
    golden = FOLDER / f"run-{name}.sbatch"
    if os.environ.get("BLESS"):
        golden.write_text(script)
    assert script == golden.read_text()


def test_the_script_of_a_function_is_as_it_was_read() -> None:
    request = BatchRequest((), "train", Path("/home/alice/work"), "4", requeues=3, options=("--error=/x/%j_0_log.err",))
    config = load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, PROFILE).config
    script = render_function(config, request, Path("/home/alice/it's $HOME"))
    golden = FOLDER / "function.sbatch"
    if os.environ.get("BLESS"):
        golden.write_text(script)
    assert script == golden.read_text()
