"""The table of profiles: how often the threads of procs stand in which functions."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = ["MAX_SECONDS", "PROFILES", "ProfileRow"]

MAX_SECONDS = 5
"""Longest profile in one answer: agents four levels down the tree have ten of a question's thirty seconds."""


@dataclass(frozen=True, slots=True)
class ProfileRow(RunProcess):
    """One stack of a proc, and how often it was found."""

    seconds: Annotated[int, "time for which the proc was sampled; 1 if a question does not say"]
    idle: Annotated[bool, "whether threads that wait were sampled, too"]
    stack: Annotated[str, "its functions, as `function (file:line)`, innermost last, separated by `;`"]
    samples: Annotated[int, "number of samples, of 20 per second and thread"]
    problem: Annotated[str, "why there is no profile; empty if there is one"]


PROFILES = Table("profiles", ProfileRow, "Samples of the stacks of procs, which py-spy takes for the question.")
