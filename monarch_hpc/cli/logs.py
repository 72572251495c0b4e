"""`monarch-hpc logs`: shows the output of agents and procs, read from the allocation's directory."""

from __future__ import annotations

import re
import time

import click

from monarch_hpc.agent.output.retention import printed_runs, removed_runs
from monarch_hpc.allocation.attempts import newest_attempt
from monarch_hpc.allocation.files import own_logs
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.option_values import since_option
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.cli.runs.attach import on_interrupt_option
from monarch_hpc.cli.runs.place import OnInterrupt
from monarch_hpc.cli.runs.sources import Choice, LogSource, find_sources, parse_ranks
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.slurm import AllocationRecord, Allocations

__all__ = ["command"]

_NAMED = 10


@click.command()
@click.argument("name", required=False)
@click.option("--agents", is_flag=True, help="Output of Slurm, the batch script and the agents.")
@click.option("--run", "run", metavar="RUN", help="Output of this run; of the last one if left out.")
@click.option("--rank", "ranks", metavar="LIST", help="Output of these ranks only, e.g. 0-3,7.")
@click.option("--node", metavar="HOST", help="Output from this host only.")
@since_option("output")
@click.option("--grep", metavar="PATTERN", help="Only lines in which this regular expression is found.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, each line with its process.")
@on_interrupt_option
@output_options
def command(
    name: str | None,
    agents: bool,
    run: str | None,
    ranks: str | None,
    node: str | None,
    since: int | None,
    grep: str | None,
    follow: bool,
    on_interrupt: str | None,
) -> int:
    """Show the output of agents and runs.

    Before the first run on the allocation, shows the agents' log. With -f, Ctrl-C leaves a run alone that runs on the
    first host, and a second one within 2 s ends it.
    """
    if agents and (follow or any(one is not None for one in (run, ranks, node, since))):
        raise click.UsageError("--agents excludes --run, --rank, --node, --since and --follow")
    if on_interrupt is not None and not follow:
        raise click.UsageError("--on-interrupt goes with --follow")
    choice = _choice(ranks, node, since, grep)
    config = load_for_command({}).config
    output = current_output()
    allocations = Allocations.open(config)
    record = allocations.find(name)
    runs = printed_runs(record.directory)
    if agents or (not runs and run is None and ranks is None and not follow):
        path = record.directory / "slurm.out"
        if not path.exists():
            raise AllocationError(record.name, f"nothing was written to {path} yet")
        own = own_logs(newest_attempt(record.directory)[1])
        joined = [job for job in allocations.registry.jobs() if job.joins == record.allocation]
        logs = {f"agents of job {job.job_id}": job.directory / "slurm.out" for job in joined}
        logs = {"agents": path, **{label: log for label, log in logs.items() if log.exists()}}
        logs |= {f"agent {each.stem}": each for each in own}
        sources = [LogSource(label, "", log, 0) for label, log in logs.items()]
    else:
        chosen = _choose_run(record, runs, run)
        if follow:
            from monarch_hpc.cli.runs.follow import Follower

            stop = OnInterrupt(on_interrupt or "detach")
            return Follower(record.name, record.directory, chosen, choice, config, output, stop).follow()
        sources = find_sources(record.directory, chosen, choice)
        if not sources:
            raise AllocationError(record.name, f"{_what(ranks, node)} of run {chosen} wrote anything")
    parts = [(source.label, source.path, choice.lines(source.last(choice.since_s))) for source in sources]
    document = {
        "name": record.name,
        "logs": [{"label": label, "path": str(path), "text": text} for label, path, text in parts],
    }
    text = "\n".join(f"==> {label}  {path}\n{text}".rstrip("\n") for label, path, text in parts)
    output.show(document, text, [str(source.path) for source in sources])
    return 0


def _choice(ranks: str | None, node: str | None, since: int | None, grep: str | None) -> Choice:
    try:
        return Choice(
            parse_ranks(ranks) if ranks is not None else (),
            node or "",
            time.time() - since if since is not None else 0.0,
            re.compile(grep) if grep is not None else None,
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--rank'") from error
    except re.error as error:
        raise click.BadParameter(str(error), param_hint="'--grep'") from error


def _choose_run(record: AllocationRecord, runs: list[str], run: str | None) -> str:
    if run is not None and run not in runs and run in removed_runs(record.directory):
        why = "enough later ones have printed since (config key 'logs.keep_runs')"
        raise AllocationError(record.name, f"the logs of run {run} were removed: {why}")
    if not runs or (run is not None and run not in runs):
        known = ", ".join(runs[-_NAMED:]) or "none"
        more = f"{len(runs) - _NAMED} more, and " if len(runs) > _NAMED else ""
        raise AllocationError(
            record.name, f"no logs of {'a run' if run is None else f'run {run}'} (there are: {more}{known})"
        )
    return run or runs[-1]


def _what(ranks: str | None, node: str | None) -> str:
    which = f"no proc of rank {ranks}" if ranks is not None else "no process"
    return f"{which} on {node}" if node is not None else which
