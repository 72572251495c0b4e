"""The command lines by which agents are started again, and by which their predecessors are found."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_hpc.agent.children.predecessor import is_agent_of
from monarch_hpc.agent.relaunch import AgentLauncher, agent_words, cpus_of
from monarch_hpc.allocation.heads import HeadPlace, newer_head, write_head
from monarch_hpc.slurm.commands.argv import agent_step_argv
from monarch_hpc.wire.control.allocation import HostEntry

HEAD = ("--rank", "0", "--directory", "/shared/ab", "--attempt", "2", "--num-hosts", "4", "--allocation", "abcd")
N2 = HostEntry(2, "n2", [], 1, "3.11", "0.1", [0], [], 1, {}, "gpu", 1)


def test_an_agent_gets_the_words_of_the_head_and_its_own_place() -> None:
    words = agent_words((*HEAD, "--group", "cpu", "--component", "0", "--ready", "5"), N2, 3)
    parser = argparse.ArgumentParser()
    for name in (
        "rank",
        "directory",
        "attempt",
        "num-hosts",
        "allocation",
        "group",
        "component",
        "ready",
        "held",
        "first-rank",
    ):
        parser.add_argument(f"--{name}")
    parser.add_argument("--again", type=int)
    found = parser.parse_args(words)
    assert (found.rank, found.group, found.component, found.ready, found.held) == ("2", "gpu", "1", "-1", "-1")
    assert (found.directory, found.num_hosts, found.again) == ("/shared/ab", "4", 3)
    command = ["python", "-P", "-m", "monarch_hpc.agent", *words]
    assert is_agent_of(command, "abcd", 2)
    assert not is_agent_of(command, "abcd", 0) and not is_agent_of(command, "dcba", 2)
    added = agent_words(HEAD, replace(N2, rank=6, first_rank=4, job_id=9), 1)
    assert is_agent_of(["python", "-m", "monarch_hpc.agent", *added], "abcd", 6), "ranks count from that of its job"
    assert not is_agent_of(["srun", "bash", "agent.sh", "python", *words], "abcd", 2), "a step is not an agent"


def test_its_step_has_one_host_whatever_the_flags_say() -> None:
    argv = agent_step_argv(7, "n2", {"overlap": True, "nodes": "4", "cpus-per-task": "8", "gres": None}, ["agent"], 1)
    assert argv[:4] == ("srun", "--jobid=7", "--het-group=1", "--nodelist=n2")
    assert argv[-1] == "agent"
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=8"} <= set(argv)
    assert "--nodes=4" not in argv and not any("gres" in word for word in argv)


@pytest.mark.parametrize(
    ("value", "component", "cpus"),
    [("8", -1, "8"), ("8(x4)", -1, "8"), ("8(x2),4", -1, None), (None, -1, None), ("16(x2)", 1, "16")],
)
def test_it_gets_the_cpus_of_its_host(value: str | None, component: int, cpus: str | None) -> None:
    name = "SLURM_JOB_CPUS_PER_NODE" + (f"_HET_GROUP_{component}" if component >= 0 else "")
    assert cpus_of({} if value is None else {name: value}, component) == cpus


def test_a_head_that_has_been_followed_starts_no_agent(tmp_path: Path) -> None:
    """It was cut off from the host, whose agent belongs to the other head; Slurm would start another one there."""
    write_head(tmp_path, HeadPlace(2, 1, ["tcp://n2:1"]))
    calls: list[Callable[[], None]] = []
    engine: Any = SimpleNamespace(call_soon=calls.append)
    args: Any = SimpleNamespace(folder=tmp_path)
    nothing: Any = None
    said: list[object] = []
    launcher = AgentLauncher(engine, nothing, args, nothing, 1, said.append)
    launcher.launch(N2, lambda *how: said.append(how))()
    for call in calls:
        call()
    why = "the head of term 2 rules, on host 1"
    assert said == [(why, False), why]
    assert newer_head(tmp_path, 1) == why and newer_head(tmp_path, 2) == "" and newer_head(tmp_path / "none", 1) == ""
    (tmp_path / "head.3.json").write_text("{")
    assert newer_head(tmp_path, 1) == "", "one that is not readable stops nobody"
