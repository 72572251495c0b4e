"""Slurm's estimates of when an allocation would begin, and what smaller and shorter ones would gain."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from monarch_hpc.cli.output import Console, TextTable
from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SlurmBusy, SlurmCommandError, SlurmError
from monarch_hpc.core.text.units import format_duration, format_slurm_time
from monarch_hpc.slurm import Allocations, Request, plan_group_flags, plan_job_flags
from monarch_hpc.slurm.commands.cluster import Partition
from monarch_hpc.slurm.commands.jobs import PlannedStart

__all__ = ["plan_choices", "show_estimates", "show_planned_start"]

_MAX_CHOICES = 5
"""With the request for the partitions' limits that makes six requests to slurmctld."""

_PATIENCE_S = 3.0
"""Time that one request may take; a slower slurmctld has more urgent work than estimates."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """One size and time, and Slurm's answer to it."""

    num_hosts: str
    time_min: int
    answer: PlannedStart | SlurmError


def plan_choices(num_hosts: str, time_min: int) -> list[tuple[str, int]]:
    """Return 3 to 5 sizes and times to compare, the request itself first.

    Shorter jobs fit into gaps before others, and smaller ones wait for fewer hosts.
    """
    sizes = [int(number) for number in re.findall(r"\d+", num_hosts)] or [1]
    half, quarter = max(1, sizes[-1] // 2), max(1, sizes[-1] // 4)
    wanted = [
        *((num_hosts, time_min), (num_hosts, time_min // 2), (num_hosts, time_min // 4)),
        *((str(half), time_min), (str(quarter), time_min), (str(half), time_min // 2)),
        *((num_hosts, 2 * time_min), (num_hosts, 4 * time_min)),
    ]
    distinct = dict.fromkeys((size, max(1, minutes)) for size, minutes in wanted)
    smaller = list(distinct)[:_MAX_CHOICES]
    return smaller if len(smaller) >= 3 else list(distinct)[:3]


def show_estimates(config: Config, request: Request, output: Console) -> None:
    """Ask Slurm about several sizes and times at once, and show the answers with the partition's limits."""
    allocations = Allocations.open(config, _PATIENCE_S)
    allocations.slurm.require("sbatch")

    def ask(choice: tuple[str, int]) -> _Choice:
        num_hosts, time_min = choice
        # The last option wins, also over one that the user has given.
        options = (*request.options, f"--nodes={num_hosts}", f"--time={time_min}")
        flags = plan_job_flags(config, replace(request, options=options))
        try:
            return _Choice(num_hosts, time_min, allocations.slurm.plan([flags], advised=False))
        except SlurmError as error:
            return _Choice(num_hosts, time_min, error)

    wanted = plan_choices(request.num_hosts, config.slurm.time_min)
    with ThreadPoolExecutor(len(wanted) + 1) as threads:
        limits = threads.submit(_limits, allocations)
        choices = list(threads.map(ask, wanted))
        partitions = limits.result()
    asked = next((one.answer.partition for one in choices if isinstance(one.answer, PlannedStart)), None)
    partition = _find(partitions, asked or config.slurm.partition)
    now_s = time.time()
    document = {
        "estimates": [_document(choice, now_s) for choice in choices],
        "partition": None
        if partition is None
        else {"name": partition.name, "max_time": partition.max_time, "max_hosts": partition.max_hosts},
    }
    rows = [
        [
            *(choice.num_hosts, format_slurm_time(choice.time_min * 60), *_when(choice, now_s)),
            *(f"{_node_hours(choice):g}", _refusal(choice)),
        ]
        for choice in choices
    ]
    output.show(document, TextTable(["HOSTS", "TIME", "START", "WAIT", "NODE-HOURS", ""], rows))
    if partition is not None:
        output.progress(
            f"partition {partition.name}: {partition.num_hosts} hosts; a job gets at most "
            f"{partition.max_hosts.lower()} hosts for {partition.max_time.lower()}; estimates change with the queue"
        )


def show_planned_start(config: Config, request: Request, output: Console) -> None:
    """Ask Slurm whether it would take the request, and when it would begin; nothing is submitted.

    Raises:
        SlurmCommandError: Slurm would refuse it, with advice.
    """
    allocations = Allocations.open(config)
    allocations.slurm.require("sbatch")
    plan = allocations.slurm.plan(plan_group_flags(config, request), advised=True)
    wait = _in_words(_wait_s(plan.start, time.time()))
    document = {"start": plan.start, "hosts": plan.hosts, "partition": plan.partition}
    output.show(
        document, f"would begin {plan.start} ({wait}) on {plan.hosts} in partition {plan.partition}", [plan.start]
    )


def _limits(allocations: Allocations) -> Sequence[Partition]:
    try:
        return allocations.slurm.partition_limits()
    except SlurmError:
        return ()  # the estimates are what was asked for


def _find(partitions: Sequence[Partition], name: str | None) -> Partition | None:
    return next((one for one in partitions if one.name == name or (name is None and one.default)), None)


def _when(choice: _Choice, now_s: float) -> tuple[str, str]:
    if not isinstance(choice.answer, PlannedStart):
        return "-", "-"
    return choice.answer.start.replace("T", " "), _in_words(_wait_s(choice.answer.start, now_s))


def _wait_s(start: str, now_s: float) -> float:
    # Slurm prints the site's local time, as this login node has it.
    return max(0.0, time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")) - now_s)


def _in_words(wait_s: float) -> str:
    return "now" if wait_s < 5 else format_duration(wait_s)


def _node_hours(choice: _Choice) -> float:
    largest = max([int(number) for number in re.findall(r"\d+", choice.num_hosts)] or [1])
    return round(largest * choice.time_min / 60, 2)


def _refusal(choice: _Choice) -> str:
    match choice.answer:
        case SlurmBusy():
            return "slurmctld did not answer in time"
        case SlurmCommandError(stderr=stderr):
            return (stderr.strip().splitlines() or ["refused"])[-1]
        case SlurmError() as error:
            return str(error).splitlines()[0]
        case _:
            return ""


def _document(choice: _Choice, now_s: float) -> dict[str, object]:
    plan = choice.answer if isinstance(choice.answer, PlannedStart) else None
    return {
        "hosts": choice.num_hosts,
        "time_min": choice.time_min,
        "node_hours": _node_hours(choice),
        "start": plan.start if plan else None,
        "wait_s": round(_wait_s(plan.start, now_s)) if plan else None,
        "on": plan.hosts if plan else None,
        "refusal": _refusal(choice) or None,
    }
