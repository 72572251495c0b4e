"""The machine that `run` starts a program on."""

from __future__ import annotations

import enum
from typing import Literal

import click

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.text.units import format_duration

__all__ = ["OnInterrupt", "Place", "choose_place"]


class OnInterrupt(enum.Enum):
    """The effect of the first Ctrl-C."""

    CANCEL = "cancel"
    DETACH = "detach"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a program.

    Attributes:
        on_host: whether it is the first host of the allocation.
        why: the reason, if nobody has asked for it.
    """

    on_host: bool
    why: str = ""


def choose_place(
    asked: Literal["here", "host0"] | None,
    configured: Literal["auto", "here", "host0"],
    cpu_limit_s: float | None,
    *,
    on_slurm: bool,
) -> Place:
    """Decide where a program runs.

    Args:
        asked: the user's choice; None if there is none.
        configured: config key `login.controller`.
        cpu_limit_s: this machine's limit on the CPU time of a process; None if there is none.
        on_slurm: whether the allocation outlives this command.
    """
    if not on_slurm:
        if asked == "host0":
            raise click.UsageError(
                "--on host0 and --detach need an allocation that outlives this command: 'monarch-hpc alloc'"
            )
        return Place(False)
    if asked is not None:
        return Place(asked == "host0")
    if configured == "auto":
        if cpu_limit_s is None:
            return Place(False)
        limit = format_duration(cpu_limit_s)
        return Place(True, f"this machine allows a process {limit} of CPU time, see '--on here'")
    return Place(configured == "host0", "this site's login nodes are not for programs (config key 'login.controller')")
