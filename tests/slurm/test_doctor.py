"""The output of `doctor` on the two sides of a real allocation."""

from __future__ import annotations

import json
import sys

from tests.slurm.commands import Alice, alice

__all__ = ["alice"]


def findings(text: str) -> dict[str, dict[str, str]]:
    return {finding["what"]: finding for finding in json.loads(text)["findings"]}


def test_login_node_and_host_see_themselves(alice: Alice) -> None:
    here = findings(alice.run("doctor", "--json").stdout)
    assert here["slurm"]["state"] == "ok"
    assert here["slurm"]["found"].startswith("slurm")
    assert here["configuration"]["found"].startswith("site profile slurmlab")
    words = ("srun", "-Q", "-N1", "-n1", "-w", "n2", "-c1", sys.executable, "-m", "monarch_hpc.cli", "doctor", "--json")
    done = alice.lab.run(words, env=alice.environment({}), timeout_s=60.0)
    assert done.returncode == 0, done.stdout + done.stderr
    there = findings(done.stdout)
    assert there["interfaces"]["found"] != here["interfaces"]["found"]
    assert there["relay"]["state"] == "ok"
