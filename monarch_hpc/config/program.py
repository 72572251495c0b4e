"""What `monarch-hpc run` tells the program that it starts, through the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.core.ids import SlurmIds

__all__ = ["DIRECTORY_VARIABLE", "RUN_VARIABLE", "Program", "own_import_path", "own_slurm_ids", "read_program"]

DIRECTORY_VARIABLE = "MONARCH_HPC_DIRECTORY"
RUN_VARIABLE = "MONARCH_HPC_RUN"
_IMPORT_PATH = "PYTHONPATH"


@dataclass(frozen=True, slots=True)
class Program:
    """Which allocation and which run this program belongs to.

    Attributes:
        directory: the allocation's directory; None where the program was started without `run`.
        run: the run's id, empty without `run`.
    """

    directory: Path | None
    run: str


def read_program() -> Program:
    """Read this process's own environment."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return Program(Path(directory) if directory else None, os.environ.get(RUN_VARIABLE, ""))


def own_slurm_ids() -> SlurmIds:
    """What Slurm calls this process's place; empty names outside of its jobs."""
    return SlurmIds.of(os.environ)


def own_import_path() -> dict[str, str]:
    """The variable that tells Python programs where to import from, where it is set."""
    return {_IMPORT_PATH: os.environ[_IMPORT_PATH]} if _IMPORT_PATH in os.environ else {}
