"""The commands of README's section on clusters, verbatim, on a real Slurm."""

from __future__ import annotations

import re

import pytest

from tests.guards.test_docs import blocks
from tests.guards.tree import ROOT
from tests.slurm.commands import Alice, alice, wait_until_left

__all__ = ["alice"]

(SESSION,) = (block for block in blocks(ROOT / "README.md") if block.language == "bash" and " alloc " in block.text)


@pytest.mark.slow  # two whole trainings
def test_the_session_on_a_cluster_goes_as_it_is_written(alice: Alice) -> None:
    command = ["bash", "-euxo", "pipefail", "-c", SESSION.text]
    done = alice.lab.run(command, env=alice.environment({}), folder=ROOT, timeout_s=480)
    assert done.returncode == 0, done.stdout + done.stderr
    echoed = [line.removeprefix("+ ") for line in done.stderr.splitlines() if line.startswith("+ monarch-hpc ")]
    words = [line.partition("#")[0].split() for line in SESSION.text.splitlines()]
    assert [line.split() for line in echoed] == words
    # As the comments in README promise.
    assert re.search(r"^dev  job \d+  4 hosts n\[1-4\], .* 16 GPUs", done.stdout, re.MULTILINE)
    assert len(re.findall(r"test accuracy 9[5-9]\.\d", done.stdout)) == SESSION.text.count("digits_ddp.py")
    assert re.search(r"^dev +\d+ +ready +4/4 ", done.stdout, re.MULTILINE)
    assert "released dev: no process left on 4 host(s)" in done.stdout
    assert alice.jobs() == {}
    wait_until_left(alice)
