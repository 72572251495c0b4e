"""Reads this process's environment: the variables that `monarch-hpc run` sets for its program, Slurm's, PYTHONPATH."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.failpoints import FAILPOINTS_VARIABLE
from monarch_hpc.core.ids import SlurmIds

__all__ = [
    "DIRECTORY_VARIABLE",
    "KEEP_VARIABLE",
    "LOOP_VARIABLE",
    "ON_LOSS_VARIABLE",
    "RUN_VARIABLE",
    "TAKES_VARIABLE",
    "ProgramSettings",
    "find_parents_allocation",
    "own_environment",
    "own_import_path",
    "own_slurm_ids",
    "own_variables",
    "publish_allocations",
    "read_failpoints",
    "read_program",
    "without_program",
]

DIRECTORY_VARIABLE = "MONARCH_HPC_DIRECTORY"
RUN_VARIABLE = "MONARCH_HPC_RUN"
KEEP_VARIABLE = "MONARCH_HPC_KEEP"
"""Set if the program's meshes of procs stay when it ends."""
ON_LOSS_VARIABLE = "MONARCH_HPC_ON_LOSS"
TAKES_VARIABLE = "MONARCH_HPC_TAKES"
"""The epoch of the run that the program takes over."""
LOOP_VARIABLE = "MONARCH_HPC_REQUEUES"
"""Set by the batch script of a job that starts again when its time is over: how many times it may."""
_IMPORT_PATH = "PYTHONPATH"
_PARENT = "MONARCH_HPC_PARENT"
"""The allocations of the program that started this process, for meshes that it gave to this process."""


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The allocation and the run that this program belongs to.

    Attributes:
        directory: the allocation's directory; None if the program was not started by `run`.
        run: the run's id; empty if the program was not started by `run`.
        on_loss: what `run` was told to do if the program is lost; empty if the configuration says it.
        takes: epoch of the run, if the program takes it over; else 0.
        keeps: whether its meshes of procs stay when it ends.
    """

    directory: Path | None
    run: str
    on_loss: str = ""
    takes: int = 0
    keeps: bool = False


def read_failpoints() -> str:
    """The places at which this process is to fail, see `core.failpoints`."""
    return os.environ.get(FAILPOINTS_VARIABLE, "")


def without_program(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the variables that name a program's allocation, for programs on other ones."""
    own = (DIRECTORY_VARIABLE, RUN_VARIABLE, ON_LOSS_VARIABLE, TAKES_VARIABLE, KEEP_VARIABLE, _PARENT)
    return {name: value for name, value in environ.items() if name not in own}


def read_program() -> ProgramSettings:
    """Read the settings from this process's environment."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    takes = os.environ.get(TAKES_VARIABLE, "")
    return ProgramSettings(
        Path(directory) if directory else None,
        os.environ.get(RUN_VARIABLE, ""),
        os.environ.get(ON_LOSS_VARIABLE, ""),
        int(takes) if takes.isdecimal() else 0,
        bool(os.environ.get(KEEP_VARIABLE)),
    )


def publish_allocations(used: Iterable[tuple[str, Path, str]]) -> None:
    """Let child processes find the allocations of this program: each its id, directory and run. They hold no key."""
    import json  # late: a program starts its agent before it needs this

    lines = [[allocation, str(directory), run] for allocation, directory, run in used]
    if lines:
        os.environ[_PARENT] = json.dumps(lines)
    else:
        os.environ.pop(_PARENT, None)


def find_parents_allocation(allocation: str) -> tuple[Path, str] | None:
    """The directory of an allocation that the parent of this program uses, and the parent's run there."""
    import json  # likewise

    try:
        for known, directory, run in json.loads(os.environ.get(_PARENT, "[]")):
            if known == allocation:
                return Path(directory), run
    except (ValueError, TypeError):  # set by someone else
        return None
    return None


def own_slurm_ids() -> SlurmIds:
    """Slurm's names for the location of this process; empty outside of its jobs."""
    return SlurmIds.of(os.environ)


def own_variables(names: Iterable[str]) -> dict[str, str]:
    """The variables among *names* that are set in this process."""
    return {name: os.environ[name] for name in names if name in os.environ}


def own_environment() -> dict[str, str]:
    """All variables of this process but those that name its allocation, for programs on other ones."""
    return without_program(os.environ)


def own_import_path() -> dict[str, str]:
    """PYTHONPATH, if it is set."""
    return own_variables([_IMPORT_PATH])
