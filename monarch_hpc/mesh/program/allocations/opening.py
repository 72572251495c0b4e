"""Opens the allocation of a program: the one it was started on, one it makes, its Slurm job, or an embedded one."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.allocation.ready import Ready
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.attach import embedded
from monarch_hpc.attach.attach import load_fabrics
from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_program
from monarch_hpc.config.schema import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.ids import new_run_id
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.start import COOKIE

__all__ = [
    "Opened",
    "find_only",
    "find_own_rank",
    "open_allocation",
    "open_attached",
    "open_embedded",
    "open_held",
    "open_named",
    "open_slurm_query",
]


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
        name: the allocation's name; empty if it has none but its directory's.
        on_loss: what becomes of the procs if the program is lost, see config key `run.on_loss`.
        takes: see `OpenRun`.
    """

    directory: Path
    config: Config
    run: str
    owner: bool
    outlives: bool
    resources: ExitStack
    name: str = ""
    on_loss: str = "stop"
    takes: int = 0


def open_allocation() -> Opened:
    """The allocation that the program was started on, else the Slurm job that it runs in, else an embedded one.

    Raises:
        AllocationError: agents cannot be started on the hosts of the job; see `slurm.inside.open_inside`.
    """
    program = read_program()
    if program.directory is not None:
        run, config = program.run or new_run_id(), read_config(program.directory)
        owns = not program.run or program.takes != 0
        on_loss = program.on_loss or config.run.on_loss
        return Opened(program.directory, config, run, owns, True, ExitStack(), "", on_loss, program.takes)
    resources = ExitStack()
    try:
        found = _open_job(resources)
        return found or open_attached(open_embedded(resources), resources=resources, outlives=False)
    except BaseException:
        resources.close()
        raise


def open_attached(
    directory: Path, name: str = "", *, resources: ExitStack | None = None, outlives: bool = True
) -> Opened:
    """The allocation in *directory*, for a run of its own."""
    config = read_config(directory)
    on_loss = config.run.on_loss if outlives else "stop"
    return Opened(directory, config, new_run_id(), True, outlives, resources or ExitStack(), name, on_loss)


def open_held(directory: Path, run: str, name: str = "") -> Opened:
    """The allocation in *directory*, for a run that another program has begun."""
    return Opened(directory, read_config(directory), run, True, True, ExitStack(), name, "hold", -1)


def open_named(name: str) -> tuple[Path, str]:
    """The directory and the name of the Slurm allocation that `monarch-hpc alloc` called *name*.

    Raises:
        AllocationError: there is none, or it has ended.
    """
    from monarch_hpc.slurm import Allocations  # not needed on laptops

    record = Allocations.open(load().config).find(name)
    if record.ended is not None:
        raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
    return record.directory, record.name


def find_only() -> str:
    """The name of the allocation that commands mean without a name.

    Raises:
        AllocationError: there is none, or there are several.
    """
    from monarch_hpc.slurm import Allocations  # not needed on laptops

    return Allocations.open(load().config).find(None).name


def find_own_rank(ready: Ready, hosts: Mapping[int, HostEntry], names: Collection[str]) -> int:
    """The rank of the host that this program runs on; -1 outside the allocation, e.g. on a login node.

    Args:
        ready: the allocation's published addresses.
        hosts: the hosts of the allocation by rank.
        names: the names of this machine.
    """
    local = all("//127." in address for address in ready.addresses)  # all hosts are this machine
    return next((rank for rank, host in sorted(hosts.items()) if local or host.name in names), -1)


def open_slurm_query(engine: Engine, job_id: int | None, directory: Path) -> SlurmQuery:
    """Slurm's word on the end of the job of an allocation, by the commands on this process's PATH."""
    return SlurmQuery(engine, job_id, os.environ, directory / "slurm.out")


def open_embedded(resources: ExitStack) -> Path:
    """Make an allocation of one host, which is this machine."""
    config = load().config
    return resources.enter_context(embedded.open_embedded(config, partial(load_fabrics, config)))


def _open_job(resources: ExitStack) -> Opened | None:
    """Start agents on the hosts of the Slurm job that this program runs in; None outside a job."""
    if "SLURM_JOB_ID" not in os.environ or COOKIE in os.environ:
        return None  # a child of a proc must not take the hosts of the proc's program
    import shutil  # these are not needed on laptops

    from monarch_hpc.slurm import find_job_here, open_inside

    here = find_job_here(os.environ)
    if here is None or (here.num_hosts == 1 and shutil.which("srun") is None):
        return None  # e.g. in a container: the embedded host is the job's only host
    config = load().config
    end = partial(shut_down, timeout_s=config.procs.stop_s)
    directory = resources.enter_context(open_inside(config, os.environ, end))
    # Not the owner: heartbeats stop while the program holds the GIL, and the agents end with the program anyway.
    return Opened(directory, config, new_run_id(), False, False, resources)
