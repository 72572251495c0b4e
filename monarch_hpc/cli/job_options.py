"""Options of the commands that ask Slurm for a job, and what these tell users before and after sbatch."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import click

from monarch_hpc.cli.main import load_to_start
from monarch_hpc.cli.option_values import limit_seconds
from monarch_hpc.cli.output import Console
from monarch_hpc.config import Config, FlagValue
from monarch_hpc.core.errors import SlurmCommandError
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import JobPlan, exclude_bad_hosts, limits_in_words

__all__ = ["exclude_hosts", "explained_refusal", "queue_options", "show_notes"]

_Result = TypeVar("_Result")

_OPTIONS = (
    click.option(
        "-t",
        "--time",
        "limit_s",
        metavar="TIME",
        callback=limit_seconds,
        help="Time limit: 30 (minutes), 2h, H:MM:SS, D-HH.",
    ),
    click.option("-p", "--partition", metavar="NAME", help="Partition."),
    click.option("-q", "--qos", metavar="NAME", help="Quality of service."),
    click.option("-A", "--account", metavar="NAME", help="Account to charge."),
    click.option("-C", "--constraint", metavar="FEATURES", help="Features that hosts must have."),
    click.option("--reservation", metavar="NAME", help="Reservation to use."),
)


def queue_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add the options that say how long, where and for whom a job runs; the command gets the `Config` with them."""

    @functools.wraps(command)
    def configured(
        *,
        limit_s: int | None,
        partition: str | None,
        qos: str | None,
        account: str | None,
        constraint: str | None,
        reservation: str | None,
        **others: object,
    ) -> _Result:
        flags = {
            # Slurm counts in minutes: round up.
            "slurm.time_min": None if limit_s is None else -(-limit_s // 60),
            "slurm.partition": partition,
            "slurm.qos": qos,
            "slurm.account": account,
            "slurm.constraint": constraint,
            "slurm.reservation": reservation,
        }
        return command(config=load_to_start(flags).config, **others)

    for option in reversed(_OPTIONS):
        configured = option(configured)
    return configured


def exclude_hosts(config: Config, flags: Mapping[str, FlagValue], output: Console) -> tuple[str, ...]:
    """Return the sbatch options that leave out the hosts of the user's list, and show a line for each of these."""
    options, bad = exclude_bad_hosts(config, flags)
    for one in bad:
        applied = "excluded" if config.slurm.exclude_allowed else "not excluded, since this site forbids that"
        age = format_duration(max(0.0, time.time() - one.at_s))
        output.progress(f"drained   {one.host}: {one.reason or 'no reason given'} ({age} ago); {applied}")
    return options


def show_notes(plan: JobPlan, output: Console) -> None:
    """Show what the site's rules and the reservation make of a job."""
    for note in plan.notes:
        output.progress(f"note      {note}")


@contextlib.contextmanager
def explained_refusal(config: Config, flags: Mapping[str, FlagValue]) -> Iterator[None]:
    """Add the site's number of jobs to a refusal by sbatch that is about them."""
    try:
        yield
    except SlurmCommandError as error:
        if limit := limits_in_words(error.stderr, config, flags):
            error.add_note(limit)
        raise
