"""Healing a mesh: dead procs are started again, or the mesh goes on without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from time import monotonic
from typing import Generic, TypeVar

from monarch_hpc.core.arguments import check_seconds, check_texts, shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, ConfigError, MeshDied, ProcDied, SlurmError
from monarch_hpc.mesh.door import ProgramDoor, block, current_door
from monarch_hpc.mesh.healing.revivals import Healing
from monarch_hpc.mesh.launch import Launch
from monarch_hpc.mesh.view import MeshView
from monarch_hpc.supervision.shrink import places_left

__all__ = ["Healed", "check_policy", "heal_mesh"]

M = TypeVar("M", bound=MeshView)

_POLICIES = ("respawn", "spares", "shrink", "replace")


@dataclass(frozen=True, slots=True)
class Healed(Generic[M]):
    """What `heal_mesh` did.

    Attributes:
        mesh: the mesh to go on with: the given one, or a smaller view of it.
        respawned: ranks in the given mesh whose procs were dead and are alive again.
        removed: ranks in the given mesh that *mesh* leaves out; some of their procs may be alive.
        causes: why procs had died, by rank in the given mesh.
        took_s: seconds.
        moved: those of *respawned* that are on other hosts than before: rank -> name of its host.
    """

    mesh: M
    respawned: tuple[int, ...]
    removed: tuple[int, ...]
    causes: dict[int, str]
    took_s: float
    moved: dict[int, str] = field(default_factory=dict)


def heal_mesh(
    mesh: M, policy: str | Sequence[str] = ("respawn", "spares", "shrink"), timeout: float | None = None
) -> Healed[M]:
    """Bring dead procs of a mesh back, or leave them out; blocks until that is done.

    A proc is started again on its host, with its place in the mesh. `bootstrap` runs in it, and the actors that the
    program has spawned there are made again by their constructors' arguments; then they get their state of the last
    `ProcMesh.checkpoint`. Calls that were begun before have failed with `ActorDied`; none of them reaches the new
    actors. All meshes that anyone holds are valid again. Actors that other actors have spawned there are not made
    again: their owners learn of the death in ``__supervise__``.

    Args:
        mesh: a mesh of procs, of the program; or one of actors, whose procs are healed with all their actors.
        policy: what to try, in this order: ``respawn`` starts dead procs again on their hosts, also on one whose agent
            was lost and is being started again; ``spares`` starts those of lost hosts on hosts without procs of the
            mesh, spare ones first; ``shrink`` leaves out what is still dead: all elements with the same coordinate,
            along the dimension in which most is left; ``replace`` takes hosts from Slurm in place of lost ones, as
            `HostMesh.grow` does, within the limits of config keys `heal.max_pending` and `heal.per_hour`, and starts
            their procs there.
        timeout: seconds for procs and actors to come back, and for hosts of ``replace`` to come; None for config key
            `procs.heal_s`.

    Returns:
        What was done; no ranks at all if no proc was dead.

    Raises:
        MeshDied: procs are dead, and the policy did not help; it names ranks in *mesh*, hosts and causes.
        RuntimeError: this is not the program, the mesh was stopped, or it is the program's own process.
        SpawnError: the procs did not start.
        TypeError: *mesh* is neither a mesh of procs nor one of actors, or *timeout* is not a number.
        ValueError: an unknown policy, or none.
    """
    begun_s = monotonic()
    healable = mesh._healable() if isinstance(mesh, MeshView) else None
    if healable is None:
        raise TypeError(f"mesh is {shown(mesh)}: give a mesh of procs or of actors")
    name, procs = healable
    steps = check_policy(policy)
    timeout_s = None if timeout is None else check_seconds("timeout", timeout)
    door = current_door()
    region = mesh._region
    if isinstance(procs, Launch):
        procs = procs.settle()
    refs = {rank: procs[rank] for rank in region.base_ranks()}
    numbers = {proc.mesh for proc in refs.values()}
    if numbers == {0}:
        raise RuntimeError("this is the program's own process, and cannot be healed")
    (number,) = numbers
    causes: dict[int, str] = {}
    respawned: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    dead: dict[int, tuple[str, str, str]] = {}
    away: dict[int, str] = {}
    left = mesh
    for step in steps if steps[0] == "respawn" else ("look", *steps):
        if step in ("spares", "replace"):
            asked = [proc.rank for rank, proc in refs.items() if region.rank_of(rank) in dead]
            if step == "replace" and (problem := _replace(door, number, asked, timeout_s)):
                dead = {rank: (host, died, problem) for rank, (host, died, _) in dead.items()}
                continue
            healing = block(door.runtime, door.move_procs(number, asked, timeout_s)) if asked else Healing({}, {})
            moved = {region.rank_of(rank): cause for rank, cause in healing.revived.items()}
            dead.update({region.rank_of(rank): where for rank, where in healing.dead.items()})
            dead = {rank: where for rank, where in dead.items() if rank not in moved}
            respawned = tuple(sorted({*respawned, *moved}))
            away.update(moved)
        elif step != "shrink":
            asked = [proc.rank for proc in refs.values()]
            healing = block(door.runtime, door.heal_procs(number, asked, timeout_s, respawn=step == "respawn"))
            found = {region.rank_of(rank): cause for rank, cause in healing.revived.items()}
            dead = {region.rank_of(rank): where for rank, where in healing.dead.items()}
            respawned = tuple(sorted({*respawned, *found}))
            causes.update({**found, **{rank: died for rank, (_, died, _) in dead.items()}})
        elif dead and (kept := places_left(region.extent, dead)) is not None:
            smaller = region.pick(*kept)
            left = mesh._viewing(smaller)
            stay = {region.rank_of(rank) for rank in smaller.base_ranks()}
            removed = tuple(rank for rank in range(len(region)) if rank not in stay)
            dead = {}
        if not dead:
            break
    if dead:
        failures = {
            rank: ProcDied(
                f"proc {rank} of {name} on {host}",
                f"{died}; it could not be started again: {problem}" if problem else died,
            )
            for rank, (host, died, problem) in dead.items()
        }
        raise MeshDied(f"healing {name}", failures)
    hosts = {rank: procs[base].host for base in refs if (rank := region.rank_of(base)) in away}
    return Healed(left, respawned, removed, causes, monotonic() - begun_s, hosts)


def _replace(door: ProgramDoor, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> str:
    """Take hosts from Slurm in place of those that procs have lost; return why that was not possible."""
    try:
        return "" if door.replace_hosts(mesh, ranks, timeout_s) else "its host is not lost, and is not replaced"
    except (AllocationError, ConfigError, SlurmError) as error:
        return str(error)


def check_policy(policy: object) -> tuple[str, ...]:
    """The steps of a policy; errors as of `heal_mesh`."""
    steps = (policy,) if isinstance(policy, str) else check_texts("policy", policy, "['respawn', 'spares']")
    allowed = ", ".join(map(repr, _POLICIES))
    for step in steps:
        if step not in _POLICIES:
            raise ValueError(f"policy {shown(step)} is unknown; give {allowed}")
    if not steps:
        raise ValueError(f"policy is empty; give {allowed}")
    return tuple(steps)
