"""Opens the allocation of a program: the one it was started on, one it makes, its Slurm job, or an embedded one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from monarch_hpc.allocation.ready import Ready
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.attach.attach import shut_down
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_program
from monarch_hpc.config.schema import Config
from monarch_hpc.core.ids import new_run_id
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.start import COOKIE

__all__ = ["TAKEN", "Opened", "Opener", "find_own_rank", "open_allocation", "open_embedded"]

Opener = Callable[[ExitStack], Path]
"""Makes an allocation that ends with the stack, and returns its directory."""

TAKEN = (
    "this program has its hosts already, and a program can use only one allocation: attach before the first use of "
    "hosts(), this_host() or this_proc(), and to all workers at once"
)


@dataclass(frozen=True, slots=True)
class Opened:
    """An allocation, and this program's run on it.

    Attributes:
        directory: the allocation's directory.
        config: the allocation's configuration.
        run: id of the run.
        owner: whether the head must end the run when it loses the program; otherwise `monarch-hpc run` does that, or
            the agents end with the program anyway.
        outlives: whether, as far as this program knows, the allocation may serve other programs after it.
        resources: closed at the end of the run.
    """

    directory: Path
    config: Config
    run: str
    owner: bool
    outlives: bool
    resources: ExitStack


def open_allocation(opener: Opener | None) -> Opened:
    """Find or make the allocation.

    Args:
        opener: makes the allocation; None for the one that the program was started on, else the Slurm job that it runs
            in, else an embedded one.

    Raises:
        AllocationError: agents cannot be started on the hosts of the job; see `slurm.inside.open_inside`.
    """
    resources = ExitStack()
    program = read_program()
    try:
        if opener is not None:
            return _own(opener(resources), resources)
        if program.directory is None:
            return _open_job(resources) or _own(open_embedded(resources), resources)
        run = program.run or new_run_id()
        return Opened(program.directory, read_config(program.directory), run, not program.run, True, resources)
    except BaseException:
        resources.close()
        raise


def find_own_rank(ready: Ready, hosts: Mapping[int, HostEntry], names: Collection[str]) -> int:
    """The rank of the host that this program runs on; -1 outside the allocation, e.g. on a login node.

    Args:
        ready: the allocation's published addresses.
        hosts: the hosts of the allocation by rank.
        names: the names of this machine.
    """
    local = all("//127." in address for address in ready.addresses)  # all hosts are this machine
    return next((rank for rank, host in sorted(hosts.items()) if local or host.name in names), -1)


def open_embedded(resources: ExitStack) -> Path:
    """Make an allocation of one host, which is this machine."""
    return resources.enter_context(open_local(1, load().config))


def _own(directory: Path, resources: ExitStack) -> Opened:
    return Opened(directory, read_config(directory), new_run_id(), True, False, resources)


def _open_job(resources: ExitStack) -> Opened | None:
    """Start agents on the hosts of the Slurm job that this program runs in; None outside a job."""
    if "SLURM_JOB_ID" not in os.environ or COOKIE in os.environ:
        return None  # a child of a proc must not take the hosts of the proc's program
    from monarch_hpc.slurm import find_job_here, open_inside  # not needed on laptops

    here = find_job_here(os.environ)
    if here is None or (here.num_hosts == 1 and shutil.which("srun") is None):
        return None  # e.g. in a container: the embedded host is the job's only host
    config = load().config
    end = partial(shut_down, timeout_s=config.procs.stop_s)
    directory = resources.enter_context(open_inside(config, os.environ, end))
    # Not the owner: heartbeats stop while the program holds the GIL, and the agents end with the program anyway.
    return Opened(directory, config, new_run_id(), False, False, resources)
