"""The plan of a batch job: its flags, and the words of its command line as a shell reads them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_hpc.config import Config
from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.slurm.batch import BatchRequest, plan_batch_flags, render_batch

REQUEST = BatchRequest(("train.py",), "train", Path("/work"))


def config(flags: dict[str, object] | None = None) -> Config:
    return load_config(
        {"HOME": "/home/alice"}, Path("/"), "login1", None, {"slurm.qos": "debug", **(flags or {})}
    ).config


def test_every_option_is_passed_and_every_line_can_be_dropped() -> None:
    request = replace(REQUEST, options=("--foo=bar", "-J other", "--mem=2G"), dropped=("exclusive", "signal"))
    flags = plan_batch_flags(config(), request)
    assert (flags["foo"], flags["job-name"], flags["mem"]) == ("bar", "other", "2G")
    assert not {"exclusive", "signal"} & flags.keys()


def test_a_line_that_is_not_there_cannot_be_dropped() -> None:
    with pytest.raises(ConfigError, match=r"no such line; it has: job-name, nodes, time, qos, ntasks-per-node"):
        plan_batch_flags(config(), replace(REQUEST, dropped=("mem",)))


@pytest.mark.parametrize("option", ["--parsable", "--wait", "--wrap=x", "--test-only"])
def test_options_that_would_change_what_the_command_does_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="cannot be changed"):
        plan_batch_flags(config(), replace(REQUEST, options=(option,)))


def test_a_loop_is_requeued_and_others_are_not() -> None:
    once, again = (plan_batch_flags(config(), replace(REQUEST, requeues=num)) for num in (0, 3))
    assert (once.get("requeue"), once.get("no-requeue")) == (None, True)
    assert (again.get("requeue"), again.get("no-requeue")) == (True, None)
    assert "\nexport MONARCH_HPC_REQUEUES=3\n" in render_batch(config(), replace(REQUEST, requeues=3))


@pytest.mark.parametrize("flags", [{}, {"slurm.partition": "debug", "slurm.qos": None}], ids=["qos", "partition"])
def test_where_the_site_forbids_it_there_is_no_loop(flags: dict[str, object]) -> None:
    strict = config({"limits.no_chaining": ["debug"], **flags})
    with pytest.raises(ConfigError, match="may not start itself again in 'debug'"):
        plan_batch_flags(strict, replace(REQUEST, requeues=3))
    assert plan_batch_flags(strict, REQUEST)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_the_shell_reads_each_word_as_it_was(words: list[str]) -> None:
    script = render_batch(config({"agent.python": "PYTHON"}), replace(REQUEST, program=tuple(words)))
    # The command is followed by this line of the template.
    command, _, _ = script.partition(" &\nprogram=$!\n")
    command = "PYTHON -P" + command.rpartition("\nPYTHON -P")[2]
    shell = f"PYTHON() {{ printf '%s\\0' \"$@\"; }}\n{command}\n"
    done = subprocess.run(["bash"], input=shell.encode(), capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["-P", "-m", "monarch_hpc.cli", "run", *words]
