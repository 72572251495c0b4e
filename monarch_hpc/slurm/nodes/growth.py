"""Growth of a living allocation: one more Slurm job, whose agents join it with the next ranks.

The folder of the attempt has a file for each such job, ``jobs/<first rank>.json``, by which the job claims its ranks: a
file is made only if it does not exist, so that of two commands which claim the same ranks one takes those behind them.
A claim is never taken back: ranks may have gaps. The job's own files, such as its script and output, are in a
directory of its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from monarch_hpc.allocation.attempts import ATTEMPTS, attempt_folder
from monarch_hpc.allocation.document import SCHEMA, read_document, write_document
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.storage.files import private_dir, write_once, write_private
from monarch_hpc.core.text.hostlist import compress
from monarch_hpc.slurm.directory import Seen, look
from monarch_hpc.slurm.record import AllocationRecord
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.slurm.script import JoinedAllocation, Request
from monarch_hpc.supervision.replacement import Replacement

__all__ = [
    "claim_ranks",
    "earlier_replacements",
    "look_joined",
    "note_outcome",
    "plan_growth",
    "prepare_joining",
]

_CLAIMS = "jobs"
_OUTCOME = "outcome.json"


def plan_growth(
    config: Config,
    record: AllocationRecord,
    num_hosts: int,
    gpus_per_node: str | None = None,
    options: tuple[str, ...] = (),
    *,
    replaces: bool = False,
) -> tuple[Config, Request]:
    """Claim the ranks of *num_hosts* hosts that shall join an allocation, and return the request for their job.

    Args:
        config: of the command; its agents are configured as those of the allocation are.
        record: a live allocation.
        options: sbatch options as the user wrote them.
        replaces: see `AllocationRecord`.

    Raises:
        AllocationError: the allocation's agents are not ready, or it has ended.
        ConfigError: the site has hosts only for salloc, whose jobs are held by a step that cannot join another one.
    """
    seen = look(record.directory)
    if not record.live or record.release_why or seen.exit_status is not None:
        raise AllocationError(record.name, "has ended, or is being released: it cannot grow")
    if seen.granted is None or seen.ready is None:
        raise AllocationError(record.name, "is not ready, and cannot grow yet; see 'monarch-hpc status'")
    if config.slurm.allocate_by == "salloc":
        raise ConfigError("slurm.allocate_by", "salloc", "configuration", "cannot grow: further hosts are a batch job")
    allocation = new_allocation_id()
    folder = attempt_folder(record.directory, seen.attempt)
    first_rank = claim_ranks(folder, len(seen.granted.hosts), num_hosts, allocation)
    request = Request(
        allocation=allocation,
        name=record.name,
        directory=config.paths.shared / allocation[:8],
        num_hosts=str(num_hosts),
        gpus_per_node=gpus_per_node,
        options=(*options, *_without(config, [host.name for host in seen.ready.hosts], options)),
        joined=JoinedAllocation(record.allocation, record.directory, seen.attempt, first_rank, replaces),
    )
    return replace(config, agent=read_config(record.directory).agent), request


def _without(config: Config, hosts: list[str], options: tuple[str, ...]) -> tuple[str, ...]:
    """The options that exclude the hosts of the allocation: a second agent of a host could be taken for the first."""
    given = [option.removeprefix("--exclude=") for option in options if option.startswith("--exclude=")]
    if not config.slurm.exclude_allowed or any("/" in value for value in given):  # Slurm's own file of hosts
        return ()
    return (f"--exclude={','.join([compress(list(dict.fromkeys(hosts))), *given[-1:]])}",)


def claim_ranks(folder: Path, first_free: int, num_hosts: int, allocation: str) -> int:
    """Claim the ranks of a job's hosts in an attempt's *folder*, and return the first of them.

    Args:
        first_free: the number of hosts that the allocation began with.
        allocation: the job's own uuid.
    """
    claims = private_dir(folder / _CLAIMS)
    while True:
        first_rank = first_free
        for name in os.listdir(claims):
            if name.removesuffix(".json").isdecimal():
                claim = read_document(claims / name)
                first_rank = max(first_rank, claim.whole("first_rank") + claim.whole("num_hosts"))
        path = claims / f"{first_rank}.json"
        fields = {"schema": SCHEMA, "allocation": allocation, "first_rank": first_rank, "num_hosts": num_hosts}
        write_once(path, json.dumps(fields).encode())
        if read_document(path).text("allocation") == allocation:
            return first_rank


def note_outcome(record: AllocationRecord, problem: str) -> None:
    """Write down that the hosts of a job have joined, or why they have not."""
    write_document(record.directory / _OUTCOME, {"problem": problem})


def earlier_replacements(registry: Registry, allocation: AllocationRecord) -> list[Replacement]:
    """Return all requests for hosts in place of lost ones of an allocation that the registry knows."""
    return [_judge(job) for job in registry.jobs() if job.joins == allocation.allocation and job.replaces]


def _judge(job: AllocationRecord) -> Replacement:
    try:
        return Replacement(job.created_s, problem=read_document(job.directory / _OUTCOME).text("problem"))
    except FileNotFoundError:
        pass
    ended = job.ended
    if ended is None:
        return Replacement(job.created_s, pending=True)
    # One that was given up has been released; all others have failed by themselves.
    return Replacement(job.created_s, problem="" if ended.state == "RELEASED" else f"{ended.state}: {ended.reason}")


def prepare_joining(directory: Path, script: str) -> Path:
    """Make the directory of a job that joins an allocation, and return its script's path."""
    private_dir(private_dir(directory) / ATTEMPTS)
    write_private(directory / "job.sh", script.encode())
    return directory / "job.sh"


def look_joined(home: AllocationRecord, record: AllocationRecord) -> Seen:
    """Read the state of a job that joins an allocation; it is ready once the head has all of its hosts.

    Raises:
        AllocationError: the allocation has ended meanwhile.
    """
    seen, there = look(record.directory), look(home.directory)
    if there.exit_status is not None:
        raise AllocationError(home.name, f"has ended before its further hosts came (job {record.job_id})")
    if seen.granted is None:
        return seen
    ranks = range(record.first_rank, record.first_rank + len(seen.granted.hosts))
    ready = there.ready
    if ready is not None:
        hosts = tuple(host for host in ready.hosts if host.rank in ranks)
        ready = replace(ready, hosts=hosts, missing=()) if len(hosts) == len(ranks) else None
    return replace(seen, reported=there.reported & frozenset(ranks), ready=ready)
