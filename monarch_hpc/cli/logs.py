"""`monarch-hpc logs`: shows the output of agents and procs, read from the allocation's directory."""

from __future__ import annotations

import re
from pathlib import Path

import click

from monarch_hpc.agent.output.log_files import OLD
from monarch_hpc.agent.output.retention import printed_runs, removed_runs
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.slurm import AllocationRecord, Allocations

__all__ = ["command"]

_PROC_LOG = re.compile(r"r(\d+)\.(.+)\.log")
# The end of a file that is printed; the heading above it names the whole file.
_SHOWN_BYTES = 1 << 20
# Number of runs, the latest ones, that an error lists: a line or two.
_NAMED = 10


@click.command()
@click.argument("name", required=False)
@click.option("--agents", is_flag=True, help="Output of Slurm, the batch script and the agents.")
@click.option("--run", "run", metavar="RUN", help="Output of this run; of the last one if left out.")
@click.option("--rank", type=click.IntRange(min=0), help="Output of this rank only.")
@output_options
def command(name: str | None, agents: bool, run: str | None, rank: int | None) -> int:
    """Show the output of agents and runs.

    Before the first run on the allocation, shows the agents' log.
    """
    if agents and (run is not None or rank is not None):
        raise click.UsageError("--agents excludes --run and --rank")
    record = Allocations.open(load_for_command({}).config).find(name)
    runs = printed_runs(record.directory)
    if agents or (not runs and run is None and rank is None):
        files = {"agents": record.directory / "slurm.out"}
        if not files["agents"].exists():
            raise AllocationError(record.name, f"nothing was written to {files['agents']} yet")
    else:
        files = _proc_files(record, runs, run, rank)
    parts = [(label, path, _text(path)) for label, path in files.items()]
    document = {
        "name": record.name,
        "logs": [{"label": label, "path": str(path), "text": text} for label, path, text in parts],
    }
    text = "\n".join(f"==> {label}  {path}\n{text}".rstrip("\n") for label, path, text in parts)
    current_output().show(document, text, [str(path) for path in files.values()])
    return 0


def _proc_files(record: AllocationRecord, runs: list[str], run: str | None, rank: int | None) -> dict[str, Path]:
    if run is not None and run not in runs and run in removed_runs(record.directory):
        why = "enough later ones have printed since (config key 'logs.keep_runs')"
        raise AllocationError(record.name, f"the logs of run {run} were removed: {why}")
    if not runs or (run is not None and run not in runs):
        known = ", ".join(runs[-_NAMED:]) or "none"
        more = f"{len(runs) - _NAMED} more, and " if len(runs) > _NAMED else ""
        raise AllocationError(
            record.name, f"no logs of {'a run' if run is None else f'run {run}'} (there are: {more}{known})"
        )
    folder = record.directory / "runs" / (run or runs[-1])
    found: list[tuple[int, str, Path]] = []
    for path in folder.iterdir():
        match = _PROC_LOG.fullmatch(path.name)
        if match and (rank is None or int(match[1]) == rank):
            found.append((int(match[1]), match[2], path))
    if not found:
        what = "no proc" if rank is None else f"no proc of rank {rank}"
        raise AllocationError(record.name, f"{what} of run {folder.name} wrote anything")
    return {f"run {folder.name} rank {number} on {host}": path for number, host, path in sorted(found)}


def _text(path: Path) -> str:
    # A proc's file that reached its size limit was renamed to the old one; its output continues in the new one.
    old = path.with_name(path.name + OLD)
    data = _end(path, _SHOWN_BYTES)
    if len(data) < _SHOWN_BYTES and old.exists():
        data = _end(old, _SHOWN_BYTES - len(data)) + data
    return data.decode(errors="replace")


def _end(path: Path, num_bytes: int) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - num_bytes))
        return file.read(num_bytes)
