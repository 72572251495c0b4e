"""`monarch-hpc release`: gives allocations back to Slurm, and checks that they are gone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import Console, current_output, output_options
from monarch_hpc.core.errors import AllocationError, JobFailed, MonarchError, TransportError
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import AllocationRecord, Allocations, Released

__all__ = ["command"]

# A request that Slurm did not answer in time is repeated by the next command.
_PATIENCE_S = 8.0


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("--all", "everything", is_flag=True, help="Every live allocation.")
@output_options
def command(name: str | None, everything: bool) -> int:
    """Give allocations back to Slurm.

    Returns when no process of the allocation is left on its hosts and Slurm's queue no longer shows the job.
    """
    if everything == (name is not None):
        raise click.UsageError("name one allocation, or give --all")
    config = load_for_command({}).config
    output = current_output()
    allocations = Allocations.open(config, _PATIENCE_S)
    census = allocations.reconcile()
    for change in census.changes:
        output.progress(change)
    if everything:
        wanted = [record for record in census.records if record.live]
    else:
        found = allocations.find(name)
        if found.ended is not None:
            raise AllocationError(found.name, f"has ended already: {found.ended.state}: {found.ended.reason}")
        wanted = [found]
    released: list[Released] = []
    failed: MonarchError | None = None
    for record in wanted:
        try:
            released.append(_release(allocations, record, config.procs.stop_s, output))
        except MonarchError as error:
            # The other allocations must be released all the same.
            if failed is not None:
                output.warn(str(failed))
            failed = error
    if failed is not None:
        raise failed
    document = {"released": [_document(done) for done in released]}
    text = "\n".join(_sentence(done) for done in released) or "there is no allocation"
    output.show(document, text, [done.record.name for done in released])
    for done in released:
        if done.problem:
            output.warn(f"{done.record.name}: {done.problem.removeprefix('monarch-hpc: ')}")
    return JobFailed.exit_code if any(done.problem for done in released) else 0


def _release(allocations: Allocations, record: AllocationRecord, stop_s: float, output: Console) -> Released:
    def shut_down(directory: Path) -> Mapping[str, int] | None:
        from monarch_hpc.attach.head.orders import shut_down as ask_head

        try:
            return ask_head(directory, stop_s)
        except (TransportError, OSError) as error:
            output.warn(f"{record.name}: its agents could not be asked to end ({error}); Slurm ends them")
            return None

    return allocations.release(record, shut_down)


def _sentence(done: Released) -> str:
    record = done.record
    numbers = [str(one.job_id) for one in (record, *done.joined) if one.job_id is not None]
    gone = f"job {numbers[0]} is gone" if len(numbers) == 1 else f"jobs {', '.join(numbers)} are gone"
    job = f"{gone} from the queue" if numbers else "it has no job"
    if done.left is None:
        agents = "its agents were not asked"
    elif any(done.left.values()):
        counts = ", ".join(
            f"{host}: {'unknown' if count < 0 else count}" for host, count in sorted(done.left.items()) if count
        )
        agents = f"processes left when the agents exited: {counts}"
    else:
        agents = f"no process left on {len(done.left)} host(s)"
    return f"released {record.name}: {agents}; {job} ({format_duration(done.waited_s)})"


def _document(done: Released) -> dict[str, object]:
    return {
        "name": done.record.name,
        "id": done.record.allocation,
        "job_id": done.record.job_id,
        "joined_jobs": [job.job_id for job in done.joined],
        "processes_left": None if done.left is None else dict(done.left),
        "waited_s": round(done.waited_s, 3),
    }
