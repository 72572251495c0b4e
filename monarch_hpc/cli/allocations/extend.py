"""`monarch-hpc extend`: changes the time limit of an allocation, as far as Slurm lets its user."""

from __future__ import annotations

import re

import click

from monarch_hpc.attach.head.orders import announce_job_end
from monarch_hpc.cli.allocations.groups import refuse_groups
from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.text.units import parse_duration
from monarch_hpc.slurm import AllocationRecord, Allocations, look

__all__ = ["command", "parse_change"]

_LESS = re.compile(r"-\d")
_ANNOUNCE_S = 5.0
"""Time for the head to learn the new end; programs go on with the earlier one if it does not."""


class _ExtendCommand(click.Command):
    """Takes ``-2h`` as a time, not as the options ``-2`` and ``-h``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        less = [word for word in args if _LESS.match(word)]
        if less and "--" not in args:
            # What follows "--" is no option, and the time is the last word.
            args = [*(word for word in args if not _LESS.match(word)), "--", *less]
        return super().parse_args(ctx, args)


@click.command(cls=_ExtendCommand)
@click.argument("words", nargs=-1, required=True, type=ALLOCATION, metavar="[NAME] +TIME | -TIME | TIME")
@output_options
def command(words: tuple[str, ...]) -> int:
    """Change the time limit of an allocation.

    +30m adds half an hour, -30m takes it away, 2h sets the whole limit. At most sites users may only shorten the limit
    of a running job; Slurm's refusal is explained. A job that still waits may be changed both ways.
    """
    if len(words) > 2:
        raise click.UsageError("give at most a name and a time: 'extend dev +30m'")
    name, change = (words[0] if len(words) == 2 else None), parse_change(words[-1])
    allocations = Allocations.open(load_for_command({}).config)
    record = allocations.find(name)
    if record.ended is not None or record.job_id is None:
        raise AllocationError(record.name, "has no job whose time could be changed; see 'monarch-hpc status'")
    slurm = allocations.slurm
    before = slurm.find_job(record.job_id, record.job_name)
    if before is None or not before.state.phase.alive:
        raise AllocationError(record.name, f"job {record.job_id} has ended; {_next_step(allocations, record, change)}")
    refuse_groups(record.name, before)
    slurm.change(record.job_id, f"TimeLimit={change}", record.directory)
    allocations.registry.drop_snapshot()  # of the old end
    detail = slurm.find_job(record.job_id, record.job_name)
    limit, end = (detail.limit, detail.end) if detail is not None else ("", "")
    if detail is not None and detail.end_s is not None and look(record.directory).ready is not None:
        announce_job_end(record.directory, detail.end_s, _ANNOUNCE_S)
    document = {
        "name": record.name,
        "job_id": record.job_id,
        "limit_before": before.limit,
        "limit": limit,
        "end_before": before.end,
        "end": end,
    }
    until = f", until {end}" if end else ""
    text = f"{record.name}  job {record.job_id}  time limit {limit or 'unknown'} (before: {before.limit}){until}"
    current_output().show(document, text, [end])
    return 0


def _next_step(allocations: Allocations, record: AllocationRecord, change: str) -> str:
    """What can be done about an allocation whose first job has ended; it may go on with others."""
    others = [job.job_id for job in allocations.registry.joined(record) if job.job_id is not None]
    if not others:
        return f"see 'monarch-hpc status {record.name}'"
    commands = ", ".join(f"'scontrol update JobId={job} TimeLimit={change}'" for job in others)
    return f"its other hosts have the time of their own jobs: {commands}"


def parse_change(text: str) -> str:
    """Return a change of the time limit as `scontrol update` takes it, in minutes: ``+30``, ``-30``, ``120``.

    Raises:
        ConfigError: neither a time limit nor one with a sign in front.
    """
    sign = text[:1] if text[:1] in ("+", "-") else ""
    seconds = parse_duration(text.removeprefix(sign))
    # Slurm counts in minutes. More time is rounded up, less time down: never to the user's loss.
    minutes = seconds // 60 if sign == "-" else -(-seconds // 60)
    if not minutes:
        raise ConfigError("", text, "command line", "Slurm counts in minutes; take away at least one")
    return f"{sign}{minutes}"
