"""The quick starts of the documentation, verbatim, on a real Slurm."""

from __future__ import annotations

import re

import pytest

from monarch_hpc.testing import wait_until
from tests.guards.test_docs import blocks
from tests.guards.tree import ROOT
from tests.slurm.commands import Alice, alice, wait_until_left

__all__ = ["alice"]

DEVELOPING, BATCH, RESERVATION = (
    block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.language == "bash"
)


@pytest.mark.parametrize(
    ("session", "promised"),
    [
        (
            DEVELOPING,
            ["dev  job ", "hello, world, from n[1-4]", r"\bn[1-4]\n", "ready  2/2", "released dev: no process left"],
        ),
        (BATCH, ["#SBATCH --nodes=2", r"submit it: sbatch hello\.sbatch", r"hello, world, from n[1-4]", "job "]),
        (RESERVATION, ["demo  job ", "hello, world, from n[1-4]", "released demo: no process left"]),
    ],
    ids=["developing", "batch", "reservation"],
)
def test_a_quick_start_goes_as_it_is_written(alice: Alice, session: str, promised: list[str]) -> None:
    alice.lab.run(
        ["sh", "-c", f"mkdir -p {alice.folder} && ln -sfn {ROOT}/examples {alice.folder}/examples"], check=True
    )
    command = ["bash", "-euo", "pipefail", "-c", session]
    done = alice.lab.run(command, env=alice.environment({}), folder=alice.folder, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [words for words in promised if not re.search(words, done.stdout)] == [], done.stdout
    wait_until("the end of all jobs", alice.jobs, 180.0, accept=lambda jobs: not jobs)
    wait_until_left(alice)
    if session is BATCH:
        for task in alice.folder.glob("tasks-*.out"):
            assert "hello, world" in task.read_text()
