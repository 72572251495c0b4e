"""`monarch-hpc alloc --grow NAME`: takes further hosts for a living allocation, as one more Slurm job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import click

from monarch_hpc.cli.job_options import exclude_hosts, explained_refusal, show_notes
from monarch_hpc.cli.output import current_output
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.text.hostlist import compress
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm import (
    AllocationRecord,
    Allocations,
    Lifecycle,
    Stage,
    plan_growth,
    plan_job_flags,
    reason_in_words,
    render_script,
)

__all__ = ["describe_growth", "show_growth"]


def show_growth(
    config: Config,
    name: str,
    nodes: str | None,
    gpus_per_node: str | None,
    options: tuple[str, ...],
    stopped: Callable[[], int | None],
    *,
    bg: bool,
    dry_run: bool,
) -> int:
    """Take the hosts, wait until their agents have joined unless *bg*, and print what there is; return the exit code.

    Args:
        nodes: the number of further hosts; None for one.
        stopped: returns the signal that ends the wait, and gives the hosts back; None while none has come.
    """
    if nodes is not None and not nodes.isdecimal():
        raise click.UsageError(f"--grow goes with a fixed number of hosts: -N is {nodes}")
    output = current_output()
    known = Allocations.open(config)
    if not dry_run:
        for change in known.reconcile().changes:
            output.progress(change)
    home = known.find(name)
    config, request = plan_growth(config, home, int(nodes or "1"), gpus_per_node, options)
    flags = plan_job_flags(config, request)
    request = replace(request, options=(*request.options, *exclude_hosts(config, flags, output)))
    if dry_run:
        script = render_script(config, request)
        output.show({"script": script}, script.removesuffix("\n"), script.splitlines())
        return 0
    allocations = Allocations(config, known.registry, known.slurm)
    request, plan = allocations.plan(request)
    show_notes(plan, output)
    with explained_refusal(config, plan_job_flags(config, request)):
        job = allocations.submit(request)
    output.progress(f"script    {job.directory}/job.sh    job {job.job_id}  name {job.job_name}")
    if bg:
        text = f"{name}  job {job.job_id}  submitted    follow it: monarch-hpc status {name}"
        output.show(describe_growth(home, job, None), text, [home.name])
        return 0
    told: list[str] = []

    def report(life: Lifecycle) -> None:
        reason = "" if life.granted is not None else life.reason
        if reason and reason not in told:
            told.append(reason)
            output.progress(f"queued    {reason_in_words(reason)}")

    try:
        life = allocations.follow(job, report, lambda: stopped() is not None)
    except AllocationError as error:
        allocations.give_back(job, error)
        raise
    if life.stage is Stage.READY and life.granted is not None:
        text = (
            f"{home.name}  job {job.job_id}  adds {compress(life.granted.hosts)}  until {life.end or 'an unknown time'}"
        )
        output.show(describe_growth(home, job, life), text, [home.name])
        return 0
    output.progress(f"interrupted: cancelling job {job.job_id}")
    released = allocations.release(job)
    output.progress(f"job {job.job_id} is gone from the queue ({format_duration(released.waited_s)})")
    return 128 + (stopped() or 0)


def describe_growth(home: AllocationRecord, job: AllocationRecord, life: Lifecycle | None) -> dict[str, object]:
    """Return what `--json` prints of a job that joins an allocation."""
    ready = life.ready if life is not None else None
    return {
        "allocation": {"name": home.name, "id": home.allocation, "job_id": home.job_id},
        "job": {
            "job_id": job.job_id,
            "job_name": job.job_name,
            "directory": str(job.directory),
            "state": "submitted" if ready is None else "ready",
            "end": life.end if life is not None else "",
            "first_rank": job.first_rank,
            "hosts": [host.name for host in ready.hosts] if ready is not None else [],
        },
    }
