"""A program written for Monarch, with only its imports changed, prints the same here as there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.system.programs import Programs, programs

__all__ = ["programs"]

DATA = Path(__file__).parents[1] / "golden" / "data" / "monarch"


def test_a_moved_program_prints_what_it_printed_there(programs: Programs) -> None:
    text = re.sub(r"\bmonarch\.", "monarch_hpc.", (DATA / "moved.txt").read_text())
    said = programs.run(text)
    # Lines that its procs write to stderr are prefixed with their rank and host.
    own = [line for line in said.splitlines() if not re.match(r"\[(\w+ )?r\d\d ", line)]
    assert own == (DATA / "moved.out").read_text().splitlines()


def test_the_program_is_one_for_monarch() -> None:
    assert "monarch_hpc" not in (DATA / "moved.txt").read_text()
