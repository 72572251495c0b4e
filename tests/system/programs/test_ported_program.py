"""A program written for Monarch prints the same here, with only its imports changed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

DATA = Path(__file__).parents[2] / "golden" / "data" / "monarch"


def test_a_moved_program_prints_what_it_printed_there(programs: Programs) -> None:
    text = re.sub(r"\bmonarch\.", "monarch_hpc.", (DATA / "moved.txt").read_text())
    output = programs.run(text)
    # Lines that procs write to stderr get a prefix with rank and host.
    own = [line for line in output.splitlines() if not re.match(r"\[(\w+ )?r\d\d ", line)]
    assert own == (DATA / "moved.out").read_text().splitlines()


def test_the_program_is_one_for_monarch() -> None:
    assert "monarch_hpc" not in (DATA / "moved.txt").read_text()
