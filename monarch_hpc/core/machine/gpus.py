"""Chooses the GPUs that belong to a proc and those that it sees, from what Slurm granted to its host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = [
    "GPU_VARIABLES",
    "GRANT_VARIABLES",
    "ordered_gpus",
    "own_block",
    "parse_device_gpus",
    "parse_gpus",
    "usable_gpus",
    "visible_gpus",
]

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that limit the GPUs that a process sees."""

GRANT_VARIABLES = (*GPU_VARIABLES, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables that list the granted GPUs, in order of preference. CUDA's comes first: Slurm sets it as seen from inside
the step, after any renumbering by cgroups."""

_DEFAULT_VARIABLE = GPU_VARIABLES[0]
_DEVICE = re.compile(r"nvidia(\d+)")


def parse_gpus(environment: Mapping[str, str]) -> tuple[str, list[str]] | None:
    """Return the variable to set for procs and the GPUs that Slurm granted; None if no variable lists any.

    An empty list means that no GPU was granted.
    """
    for variable in GRANT_VARIABLES:
        text = environment.get(variable)
        if text is not None:
            named = variable if variable in GPU_VARIABLES else _DEFAULT_VARIABLE
            return named, _parse_list(text)
    return None


def parse_device_gpus(names: Sequence[str]) -> list[str]:
    """Return the GPU indices among the file names of ``/dev``."""
    found = sorted(int(match[1]) for name in names if (match := _DEVICE.fullmatch(name)))
    return [str(index) for index in found]


def usable_gpus(environment: Mapping[str, str], names: Sequence[str], *, in_job: bool) -> list[str]:
    """Return the GPUs that a process not started by an agent may use.

    These are the granted ones; where no variable lists them, all of the machine, but none in a Slurm job.

    Args:
        names: file names of ``/dev``.
    """
    granted = parse_gpus(environment)
    if granted is not None:
        return granted[1]
    return [] if in_job else parse_device_gpus(names)


def ordered_gpus(gpus: Sequence[str], order: Sequence[str]) -> list[str]:
    """Return the host's *gpus* in the site's *order*; unchanged unless both name the same GPUs."""
    return list(order) if sorted(order) == sorted(gpus) else list(gpus)


def own_block(gpus: Sequence[str], place: int, num_places: int) -> list[str]:
    """Return the GPUs of one of *num_places* procs of a host: contiguous blocks, or shared round robin if too few."""
    if not gpus:
        return []
    if num_places > len(gpus):
        return [gpus[place % len(gpus)]]
    return list(gpus[place * len(gpus) // num_places : (place + 1) * len(gpus) // num_places])


def visible_gpus(gpus: Sequence[str], local_rank: int, per_host: int, visible: str) -> list[str]:
    """Return the GPUs that a proc sees, in order.

    Args:
        gpus: the host's GPUs, in Slurm's order.
        local_rank: the proc's index among the *per_host* procs of its mesh on this host.
        visible: ``own-first``: the proc's own, then the others, so that peers stay reachable for CUDA IPC;
            ``own``: only the proc's own; ``all``: all, in Slurm's order.
    """
    own = own_block(gpus, local_rank, per_host)
    match visible:
        case "own":
            return own
        case "all":
            return list(gpus)
        case _:
            return own + [gpu for gpu in gpus if gpu not in own]


def _parse_list(text: str) -> list[str]:
    gpus: list[str] = []
    for item in text.split(","):
        item = item.strip()
        low, dash, high = item.partition("-")
        if dash and low.isdecimal() and high.isdecimal():
            gpus.extend(str(number) for number in range(int(low), int(high) + 1))
        elif item.isdecimal() or item.startswith(("GPU-", "MIG-")):
            gpus.append(item)
        else:
            break  # as in CUDA, NoDevFiles, -1 and the like end the list
    return gpus
