"""`monarch-hpc alloc --grow NAME --from OTHER`: the hosts of one allocation join another, in the job that they have."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.cli.allocations.grow import describe_growth
from monarch_hpc.cli.output import current_output
from monarch_hpc.config import Config
from monarch_hpc.config.program import read_failpoints
from monarch_hpc.core.failpoints import arm
from monarch_hpc.core.text.hostlist import compress
from monarch_hpc.slurm import Allocations, Stage

__all__ = ["show_move"]


def show_move(config: Config, name: str, source: str, stopped: Callable[[], int | None], *, bg: bool) -> int:
    """Move the hosts, wait until their agents have joined unless *bg*, and print what there is; return the exit code.

    Args:
        stopped: returns the signal that ends the wait; None while none has come. The hosts join all the same.
    """
    output = current_output()
    allocations = Allocations.open(config)
    for change in allocations.reconcile().changes:
        output.progress(change)
    home, other = allocations.find(name), allocations.find(source)
    arm(read_failpoints())
    from monarch_hpc.attach.moving import move_hosts

    job, untold = move_hosts(config, allocations, home, other)
    output.progress(f"job {job.job_id} of {other.name} joins {home.name}")
    if untold:
        output.progress(f"its agents could not be asked to end ({untold}): the batch script ends them")
    if bg:
        output.show(describe_growth(home, job, None), f"{home.name}  job {job.job_id}  joins", [home.name])
        return 0
    life = allocations.follow(job, lambda _life: None, lambda: stopped() is not None)
    if life.stage is Stage.READY and life.granted is not None:
        text = f"{home.name}  job {job.job_id}  adds {compress(life.granted.hosts)}  from {other.name}"
        output.show(describe_growth(home, job, life), text, [home.name])
        return 0
    output.progress(f"interrupted: job {job.job_id} joins {home.name} all the same; see 'monarch-hpc status'")
    return 128 + (stopped() or 0)
