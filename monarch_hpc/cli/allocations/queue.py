"""`monarch-hpc queue`: what waits in Slurm's queue, why, and when Slurm expects it to start."""

from __future__ import annotations

import click

from monarch_hpc.cli.main import load_for_command
from monarch_hpc.cli.output import TextTable, current_output, output_options
from monarch_hpc.slurm import Allocations, reason_in_words

__all__ = ["command"]

_PATIENCE_S = 8.0


@click.command()
@output_options
def command() -> int:
    """Show what waits in the queue, why, and since when.

    All of your jobs that wait, allocations by their names. START is Slurm's estimate, which earlier ends of other jobs
    bring forward and jobs of higher priority push back; Slurm makes one for the first jobs of the queue only.
    """
    allocations = Allocations.open(load_for_command({}).config, _PATIENCE_S)
    names = {record.job_name: record.name for record in allocations.registry.jobs()}
    waiting = allocations.slurm.waiting()
    rows = [
        [
            *(names.get(job.name, f"({job.name})"), str(job.job_id), job.num_hosts, job.limit or "-", job.partition),
            *(job.submitted.replace("T", " "), job.start.replace("T", " ") or "-", reason_in_words(job.reason)),
        ]
        for job in waiting
    ]
    document = {
        "waiting": [
            {
                "allocation": names.get(job.name),
                "job_id": job.job_id,
                "job_name": job.name,
                "hosts": job.num_hosts,
                "limit": job.limit,
                "partition": job.partition,
                "submitted": job.submitted,
                "start": job.start,
                "reason": job.reason,
                "reason_in_words": reason_in_words(job.reason),
            }
            for job in waiting
        ]
    }
    columns = ["ALLOC", "JOB", "HOSTS", "LIMIT", "PARTITION", "SUBMITTED", "START", "REASON"]
    text: TextTable | str = TextTable(columns, rows) if rows else "nothing of yours waits in the queue"
    current_output().show(document, text, [names.get(job.name, job.name) for job in waiting])
    return 0
