"""The hosts of one allocation join another: the same Slurm job starts the agents of that one in place of its own.

The move is decided by one file, ``moves.sh``, in the folder of the attempt: the batch script that the job goes on with.
Before that file is there the allocation works as before. From then on, as soon as its agents have ended, the batch
script goes on with the file; it ends them itself where nobody else does. So the command that asks for the move may die
at any moment, and the next one completes the registry.
"""

from __future__ import annotations

from dataclasses import replace

from monarch_hpc.allocation.attempts import attempt_folder, newest_attempt
from monarch_hpc.allocation.document import read_document, write_document
from monarch_hpc.allocation.files import MOVES
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.slurm.directory import look
from monarch_hpc.slurm.nodes.growth import claim_ranks
from monarch_hpc.slurm.record import AllocationRecord
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.slurm.script import JoinedAllocation, Request, render_script

__all__ = ["complete_move", "decide_move", "move_refusal"]

_PLAN = "moves.json"


def move_refusal(registry: Registry, home: AllocationRecord, other: AllocationRecord) -> str:
    """Say why the hosts of *other* cannot join *home*; empty if they can, as far as files and records show."""
    seen, there = look(home.directory), look(other.directory)
    groups = [host.name for host in (there.ready.hosts if there.ready is not None else ()) if host.component >= 0]
    names = {host.name for host in (seen.ready.hosts if seen.ready is not None else ())}
    shared = [host.name for host in (there.ready.hosts if there.ready is not None else ()) if host.name in names]
    held = read_config(other.directory).slurm.allocate_by == "salloc" if there.ready is not None else False
    for problem, is_so in (
        ("is that allocation itself", home.allocation == other.allocation),
        ("has ended, or is being released", not other.live or bool(other.release_why) or there.exit_status is not None),
        ("is not ready, so that its hosts cannot move", there.granted is None or there.ready is None),
        (f"cannot give its hosts to {home.name!r}, which has ended or is being released",
         not home.live or bool(home.release_why) or seen.exit_status is not None),
        (f"cannot give its hosts to {home.name!r}, which is not ready", seen.granted is None or seen.ready is None),
        ("has grown, and only an allocation of one job can move", bool(other.parted or registry.joined(other))),
        (f"shares host {' '.join(shared[:1])} with {home.name!r}: a host has one agent of an allocation", bool(shared)),
        ("has groups of hosts, which cannot move", bool(groups)),
        ("is held by salloc, whose job cannot go on with other agents", held),
    ):  # fmt: skip
        if is_so:
            return problem
    return ""


def decide_move(
    config: Config, registry: Registry, home: AllocationRecord, other: AllocationRecord
) -> AllocationRecord:
    """Let the hosts of *other* join *home*, and return the record of its job, which joins that.

    Raises:
        AllocationError: they cannot.
    """
    if problem := move_refusal(registry, home, other):
        raise AllocationError(other.name, problem)
    seen, there = look(home.directory), look(other.directory)
    assert seen.granted is not None, "see `move_refusal`"
    assert there.granted is not None, "see `move_refusal`"
    folder = attempt_folder(home.directory, seen.attempt)
    first_rank = claim_ranks(folder, len(seen.granted.hosts), len(there.granted.hosts), other.allocation)
    request = Request(
        allocation=other.allocation,
        name=home.name,
        directory=other.directory,
        num_hosts=str(len(there.granted.hosts)),
        joined=JoinedAllocation(home.allocation, home.directory, seen.attempt, first_rank, False),
    )
    script = render_script(replace(config, agent=read_config(home.directory).agent), request)
    own = newest_attempt(other.directory)[1]
    write_document(own / _PLAN, {"joins": home.allocation, "name": home.name, "first_rank": first_rank})
    failpoint("move.claimed")
    write_private(own / MOVES, script.encode())  # from here on it happens
    failpoint("move.decided")
    return complete_move(registry, other)


def complete_move(registry: Registry, record: AllocationRecord) -> AllocationRecord:
    """Record that a job joins an allocation, if it has been decided that it does; return its record."""
    if not record.live or record.joins or record.job_id is None:
        return record
    for number in range(newest_attempt(record.directory)[0], 0, -1):
        folder = attempt_folder(record.directory, number)
        if (folder / MOVES).exists():
            plan = read_document(folder / _PLAN)
            return registry.join(record, plan.text("joins"), plan.text("name"), plan.whole("first_rank"))
    return record
