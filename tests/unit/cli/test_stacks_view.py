"""Stacks as `monarch-hpc stacks` shows them."""

from __future__ import annotations

from monarch_hpc.cli.tables.stacks import render_group
from monarch_hpc.telemetry.views.stacks import StackGroup
from monarch_hpc.wire.tables.stacks import ThreadStack


def row(rank: int, thread_name: str) -> ThreadStack:
    where = "run", 1, rank, "n0", 70 + rank, "ready", ""
    return ThreadStack(*where, 5, thread_name, False, False, True, True, "step", "a.py:1", "step (a.py:1)", "")


def test_a_thread_without_a_name_is_shown_as_one() -> None:
    one = StackGroup(["step (a.py:1)"], [row(0, "")], 1)
    assert render_group(one, 2) == "1 of 2: r00 on n0, pid 70; thread without a name\n    step (a.py:1)"
    two = StackGroup(["step (a.py:1)"], [row(0, "worker"), row(1, "")], 2)
    assert render_group(two, 2) == "2 of 2: r00-r01; thread without a name and 1 more\n    step (a.py:1)"
