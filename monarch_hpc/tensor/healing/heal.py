"""Heals a mesh of sharded tensors: dead ranks are started again, and get the state from those that have a copy.

Also has ranks back that were left out: a heal without a death.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from monarch_hpc.core.arguments import check_callable, check_flag, check_seconds
from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.mesh.healing.heal import check_policy
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.healing.attempt import HealAttempt
from monarch_hpc.tensor.healing.ranks import RankLost
from monarch_hpc.tensor.healing.shrink import larger_regions
from monarch_hpc.tensor.opening import is_whole, recovery_of, sharded_view_of

if TYPE_CHECKING:
    from monarch_hpc.core.shape import Region
    from monarch_hpc.tensor.healing.recovery import Recovery
    from monarch_hpc.tensor.stream.engine import View

__all__ = ["grow_mesh", "heal_engine", "heal_mesh"]

_HOUR_S = 3600.0
_MAX_ATTEMPTS = 16
"""Deaths within one heal that are put up with; each costs an attempt."""


class _OnProcs(Protocol):
    """A `Mesh`."""

    procs: ProcMesh


M = TypeVar("M", bound=_OnProcs)


def heal_mesh(
    mesh: M,
    policy: str | Sequence[str] = ("respawn", "spares", "shrink"),
    timeout: float | None = None,
    *,
    rewind: bool = False,
    checkpoint: Callable[[M], object] | None = None,
) -> M:
    """Bring a mesh back that a `DeviceMeshError` was raised of; returns at once if it is well.

    Procs that have died are started again, on their hosts or on spare ones, or the mesh goes on without them. All ranks
    go to the state of `Mesh.version`, that of the last optimizer step that is done; what a rank lacks comes from those
    that have it. Tensors that were made before that step stay valid, on a smaller mesh too; those made since, and sums
    that were not added up, are lost: reads of them raise `DeviceMeshError`. Optimizers and learning rate schedulers of
    the program go back with it.

    Args:
        mesh: the mesh.
        policy: what to try, as of `monarch_hpc.heal_mesh`. ``shrink`` makes it smaller along one dimension: that of
            which no state is lost, and where most ranks are left; what was split over it is split over fewer ranks.
        timeout: seconds for procs to come back; None for config key `procs.heal_s`.
        rewind: whether the program handles it itself that more is lost than its last batch: it has to go on at
            `Mesh.version`.
        checkpoint: called with the mesh if no rank has a copy of a part of the state: it loads the last checkpoint with
            `Mesh.load`, and has the program go on from there. Not called if nothing is lost.

    Returns:
        The same mesh, which has fewer ranks if some were left out.

    Raises:
        DeviceMeshError: the mesh cannot be healed: ``died`` if the policy did not help; ``lost`` if no rank has a copy
            of a parameter, of the state of an optimizer, or of another tensor that was written to, and *checkpoint* is
            None or has not loaded it, or if modules or optimizers live on the ranks;
            ``torn`` if the ranks do not agree. Or it would not be exact to repeat the last batch, and *rewind* is
            False: the mesh can still be healed with it.
        TypeError: *mesh* is not a mesh with sharded tensors, or *timeout* is not a number.
        ValueError: an unknown policy, or none; or *mesh* is a part of one, or ranks of it
            were left out.
    """
    check_flag("rewind", rewind)
    steps = check_policy(policy)
    timeout_s = None if timeout is None else check_seconds("timeout", timeout)
    if checkpoint is not None:
        check_callable("checkpoint", checkpoint)
    view = sharded_view_of(mesh.procs)
    engine = view.engine
    if engine.broken is None:
        return mesh
    if engine.recovery is None:
        raise _not_kept(engine)
    if "shrink" in steps and not is_whole(view):
        steps = tuple(step for step in steps if step != "shrink")
    recovery = recovery_of(mesh.procs)
    recovery.settle()
    if recovery.goes_on:
        engine.check()  # it heals by itself
        return mesh
    _check(recovery, engine.broken, rewind=rewind or bool(recovery.unloaded))  # what is loaded says where to go on
    if recovery.unloaded and checkpoint is None:
        cause = "what no rank has a copy of was not loaded yet: give checkpoint="
        raise DeviceMeshError(engine.name, "lost", -1, cause) from engine.broken
    region = heal_engine(view, recovery, steps, timeout_s, loads=checkpoint is not None)
    if region != mesh.procs.region:
        mesh.procs = mesh.procs._viewing(region)
    if recovery.unloaded and checkpoint is not None:
        _load(mesh, recovery, engine, checkpoint)
    return mesh


def grow_mesh(mesh: M, policy: str | Sequence[str] = ("respawn", "spares"), timeout: float | None = None) -> M:
    """Have ranks back that a heal has left out; returns at once if there are none.

    The state as it is now becomes a version, of which the ranks that come get their parts: a heal without a death. What
    it keeps of tensors is as after `heal_mesh`: all but gradients, autograd's history, and tensors with a value for
    each rank. If a rank dies in it, it begins again.

    Args:
        mesh: the mesh.
        policy: how to start procs that have died: some of ``respawn``, ``spares`` and ``replace``, as of
            `monarch_hpc.heal_mesh`. Rows with a rank that cannot be started stay left out.
        timeout: seconds for procs to come; None for config key `procs.heal_s`.

    Returns:
        The same mesh, with more ranks.

    Raises:
        DeviceMeshError: no row can be started, and the mesh goes on as it is; or it has broken, and `heal_mesh` heals
            it.
        TypeError: *mesh* is not a mesh with sharded tensors, keeps no versions, or *timeout* is not a number.
        ValueError: an unknown policy, none, or ``shrink``; or *mesh* is a part of one.
        Exception: an operation failed, and nobody has read its result.
    """
    steps = check_policy(policy)
    timeout_s = None if timeout is None else check_seconds("timeout", timeout)
    if "shrink" in steps:
        raise ValueError("a mesh grows by 'respawn', 'spares' or 'replace'; 'shrink' is of heal_mesh")
    view = sharded_view_of(mesh.procs)
    engine = view.engine
    if not is_whole(view):
        raise ValueError(f"{mesh.procs!r} is a part of a mesh: grow the whole one")
    engine.check()
    if not engine.left_out:
        return mesh
    recovery = recovery_of(mesh.procs)
    absent = recovery.ranks.bring_back(sorted(engine.left_out), steps, timeout_s)
    if not larger_regions(view.whole, view.ranks, absent):
        raise _not_grown(engine, absent)
    recovery.commit(view, num_steps=0)
    engine.sync()
    engine.stop_to_grow()
    recovery.settle()
    region = heal_engine(view, recovery, steps, timeout_s, loads=False, grows=True)
    if region == mesh.procs.region:
        raise _not_grown(engine, absent)
    mesh.procs = mesh.procs._viewing(region)
    return mesh


def _not_grown(engine: Any, absent: dict[int, str]) -> DeviceMeshError:
    rank = min(absent, default=-1)
    cause = f"no row that was left out could be started: {absent.get(rank, 'its ranks died again')}"
    return DeviceMeshError(engine.name, "died", rank, f"{cause}; it goes on without them", version=0)


def heal_engine(
    view: View,
    recovery: Recovery,
    policy: Sequence[str],
    timeout_s: float | None,
    *,
    loads: bool,
    grows: bool = False,
) -> Region:
    """Heal a mesh after its version was decided; return it as it is then.

    Args:
        view: the mesh.
        recovery: its versions.
        policy: see `heal_mesh`.
        timeout_s: see `HealAttempt.run`.
        loads: see `HealAttempt.run`.
        grows: whether ranks that were left out come back.

    Raises:
        DeviceMeshError: see `heal_mesh`.
    """
    engine = view.engine
    _spend(recovery, engine, engine.config.heals_an_hour)
    for _ in range(_MAX_ATTEMPTS):
        try:
            if recovery.is_begun:
                recovery.decide()
                assert engine.broken is not None
                _check(recovery, engine.broken, rewind=True)
            recovery.is_begun = True
            attempt = HealAttempt(recovery, engine, view.region, view.whole if grows else None)
            return attempt.run(policy, timeout_s, loads=loads)
        except RankLost as error:
            last = error
    cause = f"{_MAX_ATTEMPTS} attempts to heal it were cut off: {last}"
    raise DeviceMeshError(engine.name, "died", -1, cause) from last


def _load(mesh: M, recovery: Recovery, engine: Any, checkpoint: Callable[[M], object]) -> None:
    """Have the program load what no rank has a copy of.

    Raises:
        DeviceMeshError: a part of it was not loaded, or the mesh has broken meanwhile.
        Exception: what *checkpoint* raised. In both cases the mesh can be healed again, with another one.
    """
    lacking: list[int] = []
    try:
        checkpoint(mesh)
        engine.wait()
        for rank, numbers in recovery.unloaded.items():
            lacking += recovery.ranks.ask([rank], "unwritten", sorted(numbers))[rank]
        if not lacking:
            recovery.unloaded.clear()
            return
    except RankLost as error:
        raise DeviceMeshError(engine.name, "died", -1, f"it was lost in checkpoint=: {error}") from error
    finally:
        if recovery.unloaded and engine.broken is None:  # nobody may compute with what has no contents
            cause = f"{len(lacking) or 'some'} tensors that no rank has a copy of were not loaded by checkpoint="
            engine.broken = DeviceMeshError(engine.name, "lost", -1, cause, version=recovery.known)
    raise engine.failure()


def _not_kept(engine: Any) -> DeviceMeshError:
    broken = engine.broken
    why = engine.unhealable or "it was made with commit=False, and keeps no versions"
    cause = f"{broken.cause}; {why}: load the last checkpoint"
    return DeviceMeshError(engine.name, "lost", broken.rank, cause, broken.host, broken.last_lines)


def _check(recovery: Recovery, broken: DeviceMeshError, *, rewind: bool) -> None:
    """Raise what makes it impossible to heal."""
    if broken.version < 0:
        raise broken
    if recovery.obstacle and not rewind:
        raise DeviceMeshError(
            broken.mesh,
            broken.kind,
            broken.rank,
            f"{broken.cause}; to repeat the last batch would not be exact, because {recovery.obstacle}; "
            f"heal_mesh(mesh, rewind=True) goes to version {broken.version}",
            broken.host,
            broken.last_lines,
            broken.version,
        ) from broken


def _spend(recovery: Recovery, engine: Any, limit: int) -> None:
    """Count a heal.

    Raises:
        DeviceMeshError: there were too many.
    """
    now_s = monotonic()
    begun: deque[float] = recovery.begun_s
    while begun and now_s - begun[0] > _HOUR_S:
        begun.popleft()
    if len(begun) >= limit:
        raise DeviceMeshError(
            engine.name, "died", -1, f"it was healed {limit} times within an hour, see tensor.heals_an_hour"
        ) from engine.broken
    begun.append(now_s)
