"""A broadcast over links that are shaped: each byte once over the link of each host, also when a host's proc dies."""

from __future__ import annotations

import re

from benchmarks.broadcast import shaped_links
from tests.guards.tree import ROOT
from tests.slurm.commands import HOSTS, Alice, alice, held

__all__ = ["alice", "held"]


def test_each_host_sends_each_byte_once_and_a_death_costs_the_others_little(held: Alice) -> None:
    """A small form of the benchmark, whose times are for a machine without other load: here bytes are counted."""
    program = str(ROOT / "benchmarks" / "broadcast.py")
    with shaped_links(held.lab, HOSTS, mbit=40):
        done = held.run("run", "-a", "dev", program, "--inside", "--mib", "8", "--rounds", "2")
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    assert "died: signal 9 (SIGKILL)" in done.stderr
    (sent,) = re.findall(r"busiest host: ([\d.]+) times", done.stdout)
    assert float(sent) <= 1.2, done.stdout
    # 3 if the source had sent to each of the three, 2 if it had begun again.
    (sent_then,) = re.findall(r"with one killed: ([\d.]+) times", done.stdout)
    assert float(sent_then) <= 1.9, done.stdout
