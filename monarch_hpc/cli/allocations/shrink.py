"""`monarch-hpc shrink`: gives some hosts of an allocation back to Slurm, and keeps the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from monarch_hpc.cli.allocations.groups import refuse_groups
from monarch_hpc.cli.allocations.names import ALLOCATION
from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, SlurmCommandError
from monarch_hpc.core.text.hostlist import compress, expand
from monarch_hpc.slurm import Allocations

__all__ = ["command", "plan_shrink"]

_ASK_S = 30.0
"""Time for the answer of the head: without it, no host is given back."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Hosts, by rank, that stay and that go."""

    kept: Mapping[int, str]
    freed: Mapping[int, str]


@click.command()
@click.argument("name", required=False, type=ALLOCATION)
@click.option("-N", "--nodes", "num_hosts", type=click.IntRange(1), required=True, help="Number of hosts to keep.")
@click.option("--force", is_flag=True, help="Free hosts even if runs have procs there, which are ended.")
@output_options
def command(name: str | None, num_hosts: int, force: bool) -> int:
    """Give some hosts of an allocation back to Slurm.

    Lost hosts go first, then those without procs, the last ones first; the first host and the head's
    stay. Their agents end before Slurm gets them.
    """
    config = load_for_command({}).config
    allocations = Allocations.open(config)
    record = allocations.find(name)
    if record.ended is not None or record.job_id is None:
        raise AllocationError(record.name, "has no hosts; see 'monarch-hpc status'")
    from monarch_hpc.attach.head.orders import free_hosts
    from monarch_hpc.attach.head.status import query_status

    head = query_status(record.directory, _ASK_S)
    if head is None:
        raise AllocationError(record.name, f"its head does not answer; see 'monarch-hpc status {record.name}'")
    if others := [str(job.job_id) for job in allocations.registry.joined(record) if job.job_id is not None]:
        jobs = ", ".join(others)
        raise AllocationError(record.name, f"has grown: 'scancel JOB' gives back the hosts of a further job ({jobs})")
    detail = allocations.slurm.find_job(record.job_id, record.job_name)
    if detail is None:
        raise AllocationError(record.name, f"job {record.job_id} has ended; see 'monarch-hpc status {record.name}'")
    refuse_groups(record.name, detail)
    plan = plan_shrink(record.name, head["hosts"], num_hosts, force=force)
    left: Mapping[str, int] = {}
    if plan.freed:
        answer = free_hosts(record.directory, sorted(plan.freed), config.procs.stop_s)
        if answer is None:
            raise AllocationError(
                record.name, "its head did not confirm that the hosts are empty; nothing was given back"
            )
        left = answer
    # Slurm may still have hosts that left before, when it refused to take them.
    kept = list(plan.kept.values())
    surplus = sorted(set(expand(detail.hosts)) - set(kept))
    if surplus:
        try:
            allocations.slurm.change(record.job_id, f"NodeList={compress(kept)}", record.directory)
        except SlurmCommandError as error:
            error.add_note(
                f"{compress(surplus)} stay in job {record.job_id}, without agents; 'monarch-hpc shrink {record.name} "
                f"-N {num_hosts}' tries again"
            )
            raise
        allocations.registry.drop_snapshot()
    document = {"name": record.name, "job_id": record.job_id, "kept": kept, "freed": surplus, "processes_left": left}
    freed = f"gave {compress(surplus)} back" if surplus else "nothing to give back"
    current_output().show(document, f"{record.name}  job {record.job_id}  {freed}; keeps {compress(kept)}", kept)
    return 0


def plan_shrink(name: str, hosts: Sequence[Mapping[str, object]], num_hosts: int, *, force: bool) -> _Plan:
    """Choose the hosts that stay.

    Args:
        name: the allocation, for errors.
        hosts: the head's report of its hosts.
        num_hosts: number of hosts to keep.
        force: whether hosts with procs may go.

    Raises:
        AllocationError: there are fewer hosts, or procs run on hosts that would have to go.
    """
    named = {int(str(host["rank"])): str(host["name"]) for host in hosts}
    if num_hosts > len(named):
        problem = f"has {len(named)} hosts, fewer than {num_hosts}; 'monarch-hpc alloc --grow' takes more"
        raise AllocationError(name, problem)
    procs = {int(str(host["rank"])): int(str(host["procs"])) for host in hosts}
    usable = {int(str(host["rank"])): host["state"] != "lost" and not host["problem"] for host in hosts}
    head = {int(str(host["rank"])) for host in hosts if host["head"]}
    # The batch script is on the first host.
    worth = sorted(named, key=lambda rank: (rank in head, usable[rank], rank == 0, procs[rank] > 0, -rank))
    freed = sorted(worth[: len(named) - num_hosts])
    busy = [rank for rank in freed if procs[rank] and usable[rank]]
    if busy and not force:
        where = ", ".join(f"{procs[rank]} on {named[rank]}" for rank in busy)
        raise AllocationError(name, f"procs run on hosts that would have to go ({where}); wait, or give --force")
    kept = {rank: named[rank] for rank in sorted(named) if rank not in freed}
    return _Plan(kept, {rank: named[rank] for rank in freed})
