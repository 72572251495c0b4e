"""Reads this process's environment: the variables that `monarch-hpc run` sets for its program, Slurm's, PYTHONPATH."""

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
    """The allocation and the run that this program belongs to.

    Attributes:
        directory: the allocation's directory; None if the program was not started by `run`.
        run: the run's id; empty if the program was not started by `run`.
    """

    directory: Path | None
    run: str


def read_program() -> ProgramSettings:
    """Read the settings from this process's environment."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return ProgramSettings(Path(directory) if directory else None, os.environ.get(RUN_VARIABLE, ""))


def own_slurm_ids() -> SlurmIds:
    """Slurm's names for the location of this process; empty outside of its jobs."""
    return SlurmIds.of(os.environ)


def own_variables(names: Iterable[str]) -> dict[str, str]:
    """The variables among *names* that are set in this process."""
    return {name: os.environ[name] for name in names if name in os.environ}


def own_import_path() -> dict[str, str]:
    """PYTHONPATH, if it is set."""
    return own_variables([_IMPORT_PATH])
