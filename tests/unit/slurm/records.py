"""Real output of Slurm, each in a file with the command that produced it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden" / "data" / "slurm" / "22.05"


def answer(name: str) -> str:
    """Return a command's output; the first line of the file is the command."""
    command, _, text = (FOLDER / f"{name}.txt").read_text().partition("\n")
    assert command.startswith("$ ")
    return text
