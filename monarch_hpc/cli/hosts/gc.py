"""`monarch-hpc gc`: removes what killed commands, programs and agents of this user left on this machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from monarch_hpc.agent.children.leftovers import find_leftovers, kill_leftovers
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.core.storage.scratch import PREFIX, sweep_scratch
from monarch_hpc.slurm import Allocations

__all__ = ["command"]

_PATIENCE_S = 8.0
_SHM = Path("/dev/shm")


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the processes that would be ended, and change nothing.")
@output_options
def command(dry_run: bool) -> int:
    """Remove what earlier allocations left on this machine.

    Records of allocations whose job is gone, folders with sockets and shared memory that no process holds, and
    processes of allocations that have neither an agent nor a job here. Agents do the same on their hosts when they
    start; everything of a live allocation stays.
    """
    config = load_for_command({}).config
    output = current_output()
    leftovers = find_leftovers()
    processes = [{"pid": one.pid, "job_id": one.job_id or None, "command": one.command} for one in leftovers]
    if dry_run:
        lines = [f"process {one.pid} of job {one.job_id or '-'}: {one.command}" for one in leftovers]
        output.show({"processes": processes}, "\n".join(lines) or "no process is left over", [])
        return 0
    allocations = Allocations.open(config, _PATIENCE_S)
    census = allocations.reconcile()
    if census.problem is not None:
        output.warn(f"{census.problem}\nrecords of allocations stay as they are")
    places = dict.fromkeys((_SHM, Path(tempfile.gettempdir())))
    before = sum(map(_num_scratch, places))
    for place in places:
        sweep_scratch(place)
    num_folders = before - sum(map(_num_scratch, places))
    num_killed = kill_leftovers(leftovers)
    document = {
        "changes": list(census.changes),
        "folders": num_folders,
        "processes": processes[:],
        "killed": num_killed,
    }
    lines = [*census.changes, f"removed {num_folders} folder(s), ended {num_killed} process(es)"]
    output.show(document, "\n".join(lines), [])
    return 0


def _num_scratch(place: Path) -> int:
    try:
        return sum(name.startswith(PREFIX) for name in os.listdir(place))
    except OSError:
        return 0
