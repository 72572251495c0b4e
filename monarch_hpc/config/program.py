"""What `monarch-hpc run` tells the program that it starts, through the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.core.ids import SlurmIds

__all__ = [
    "DIRECTORY_VARIABLE",
    "RUN_VARIABLE",
    "ProgramSettings",
    "own_import_path",
    "own_slurm_ids",
    "own_variables",
    "read_program",
]

DIRECTORY_VARIABLE = "MONARCH_HPC_DIRECTORY"
RUN_VARIABLE = "MONARCH_HPC_RUN"
_IMPORT_PATH = "PYTHONPATH"


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """Which allocation and which run this program belongs to.

    Attributes:
        directory: the allocation's directory; None where the program was started without `run`.
        run: the run's id, empty without `run`.
    """

    directory: Path | None
    run: str


def read_program() -> ProgramSettings:
    """Read this process's own environment."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return ProgramSettings(Path(directory) if directory else None, os.environ.get(RUN_VARIABLE, ""))


def own_slurm_ids() -> SlurmIds:
    """What Slurm calls this process's place; empty names outside of its jobs."""
    return SlurmIds.of(os.environ)


def own_variables(names: Iterable[str]) -> dict[str, str]:
    """Those of the variables *names* that this process has."""
    return {name: os.environ[name] for name in names if name in os.environ}


def own_import_path() -> dict[str, str]:
    """The variable that tells Python programs where to import from, where it is set."""
    return own_variables([_IMPORT_PATH])
