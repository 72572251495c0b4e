"""Real answers of Slurm, each in a file with the command that made it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden" / "data" / "slurm" / "22.05"


def answer(name: str) -> str:
    """Return what a command printed; the first line of the file is the command."""
    command, _, text = (FOLDER / f"{name}.txt").read_text().partition("\n")
    assert command.startswith("$ ")
    return text
