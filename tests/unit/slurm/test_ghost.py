"""Ghost jobs: cancelled only if every host that Slurm counts says that it has no agent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.states import SlurmState
from monarch_hpc.slurm.ghost import MARK, ask_agents, decide_ghost, parse_agents, runs_without
from monarch_hpc.testing import wait_until
from tests.child import child
from tests.unit.slurm.makers import detail

RUNNING = detail(SlurmState.RUNNING)  # on n[1-4]
NOBODY = dict.fromkeys(("n1", "n2", "n3", "n4"), False)


@pytest.mark.parametrize(
    "answers",
    [{}, {"n1": False}, {**NOBODY, "n3": True}, {"n1": False, "n2": False, "n4": False}, {"n9": False}],
    ids=["none could be asked", "one could", "one has an agent", "one could not", "others"],
)
def test_whoever_could_not_be_asked_may_have_an_agent(answers: dict[str, bool]) -> None:
    assert decide_ghost(RUNNING, answers, "n1", "n1") == ""


@pytest.mark.parametrize("state", [state for state in SlurmState if state is not SlurmState.RUNNING])
def test_only_a_running_job_is_one(state: SlurmState) -> None:
    found = decide_ghost(detail(state), NOBODY, "n1", "n1")
    assert not found or state.phase is RUNNING.state.phase


def test_a_job_that_slurm_does_not_know_is_none() -> None:
    assert decide_ghost(None, NOBODY, "n1", "n1") == ""


@pytest.mark.parametrize(
    ("head", "batch", "words"),
    [
        ("n1", "n1", ""),
        ("n9", "n9", "; n9, with its head and batch script, has left the job"),
        ("n2", "n9", "; n9, with its batch script, has left the job"),
        ("n9", "n2", "; n9, with its head, has left the job"),
        ("", "", ""),
    ],
)
def test_a_ghost_names_the_hosts_that_are_gone(head: str, batch: str, words: str) -> None:
    assert decide_ghost(RUNNING, NOBODY, head, batch) == f"no agent is left on its hosts (n[1-4]){words}"


def test_the_host_of_the_batch_script_decides_whether_anything_ends_the_job() -> None:
    assert [runs_without(RUNNING, host) for host in ("n1", "n9", "")] == [False, True, False]
    assert not runs_without(detail(SlurmState.COMPLETING), "n9")


def test_answers_of_hosts_among_other_lines() -> None:
    text = f"welcome to n1\n{MARK} n1 9 0\n{MARK} n2 9 2\n{MARK} n3\n{MARK} n4 x 0\n{MARK} n5 9 -1\nx {MARK} n6 9 0\n"
    text += f"{MARK} n7 0 0\n{MARK} n8 9\n"  # it cannot read even its own processes
    assert parse_agents(text) == {"n1": False, "n2": True}
    assert parse_agents("") == {}


class OneHost(SlurmClient):
    """A Slurm whose steps run here, on the only host of the job."""

    def run_on_all(self, job_id: int, sizes: Sequence[int], command: object, timeout_s: float) -> str:
        assert isinstance(command, tuple)
        return subprocess.run(command, capture_output=True, text=True, check=True, env={"SLURMD_NODENAME": "n1"}).stdout


@pytest.mark.parametrize("digit", "0f")
def test_the_question_finds_agents_and_not_itself(digit: str) -> None:
    allocation, other = f"{digit}9ae{'7' * 28}", f"{digit}9ae{'7' * 27}8"
    client = OneHost({}, 1.0)
    assert ask_agents(client, RUNNING, allocation, 10.0) == {"n1": False}
    argv = [sys.executable, "-c", "import time; time.sleep(600)", "--allocation"]
    with child(subprocess.Popen([*argv, other])), child(subprocess.Popen([*argv, f"x{allocation}"])):
        assert ask_agents(client, RUNNING, allocation, 10.0) == {"n1": False}
    with child(subprocess.Popen([*argv, allocation])):
        ask = lambda: ask_agents(client, RUNNING, allocation, 10.0)  # noqa: E731
        wait_until("the agent", ask, 60.0, accept=lambda found: found == {"n1": True})
