"""Heals a mesh of sharded tensors: dead ranks are started again, and get the state from those that have a copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from monarch_hpc.core.arguments import check_callable, check_flag
from monarch_hpc.core.errors import DeviceMeshError, MeshDied
from monarch_hpc.core.text.description import text_of
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.healing.plan import FillPlan, plan_fill, same_part
from monarch_hpc.tensor.healing.ranks import RankLost
from monarch_hpc.tensor.opening import recovery_of, sharded_view_of
from monarch_hpc.tensor.stream.holdings import Held, HeldPart
from monarch_hpc.tensor.stream.records import MeshSpec

if TYPE_CHECKING:
    from monarch_hpc.tensor.healing.recovery import Recovery

__all__ = ["heal_mesh"]

_HOUR_S = 3600.0
_MAX_ATTEMPTS = 16
"""Deaths within one heal that are put up with; each costs an attempt."""


class _OnProcs(Protocol):
    """A `Mesh`."""

    procs: ProcMesh


M = TypeVar("M", bound=_OnProcs)


def heal_mesh(mesh: M, *, rewind: bool = False, checkpoint: Callable[[M], object] | None = None) -> M:
    """Bring a mesh back that a `DeviceMeshError` was raised of; returns at once if it is well.

    Procs that have died are started again, on their hosts or on spare ones. All ranks go to the state of
    `Mesh.version`, that of the last optimizer step that is done; a replacement gets it from ranks that have the same
    parts. Tensors that were made before that step stay valid; those made since, and sums that were not added up, are
    lost: reads of them raise `DeviceMeshError`. Optimizers and learning rate schedulers of the program go back with it.

    Args:
        mesh: the mesh.
        rewind: whether the program handles it itself that more is lost than its last batch: it has to go on at
            `Mesh.version`.
        checkpoint: called with the mesh if no rank has a copy of a part of the state: it loads the last checkpoint with
            `Mesh.load`, and has the program go on from there. Not called if nothing is lost.

    Returns:
        The same mesh.

    Raises:
        DeviceMeshError: the mesh cannot be healed: ``lost`` if no rank has a copy of a parameter, of the state of an
            optimizer, or of another tensor that was written to, and *checkpoint* is None or has not loaded it, or if
            modules or optimizers live on the ranks;
            ``torn`` if the ranks do not agree. Or it would not be exact to repeat the last batch, and *rewind* is
            False: the mesh can still be healed with it.
        TypeError: *mesh* is not a mesh with sharded tensors.
    """
    check_flag("rewind", rewind)
    if checkpoint is not None:
        check_callable("checkpoint", checkpoint)
    view = sharded_view_of(mesh.procs)
    engine = view.engine
    if engine.broken is None:
        return mesh
    if engine.recovery is None:
        raise _not_kept(engine)
    recovery = recovery_of(mesh.procs)
    recovery.settle()
    _check(recovery, engine.broken, rewind=rewind or bool(recovery.unloaded))  # what is loaded says where to go on
    if recovery.unloaded and checkpoint is None:
        cause = "what no rank has a copy of was not loaded yet: give checkpoint="
        raise DeviceMeshError(engine.name, "lost", -1, cause) from engine.broken
    _spend(recovery, engine, engine.config.heals_an_hour)
    for _ in range(_MAX_ATTEMPTS):
        try:
            if recovery.is_begun:
                recovery.decide()
                _check(recovery, engine.broken, rewind=True)
            recovery.is_begun = True
            _attempt(recovery, engine, loads=checkpoint is not None)
            break
        except RankLost as error:
            last = error
        except MeshDied as error:
            raise DeviceMeshError(
                engine.name, "died", -1, f"its procs could not be started: {text_of(error)}"
            ) from error
    else:
        raise DeviceMeshError(
            engine.name, "died", -1, f"{_MAX_ATTEMPTS} attempts to heal it were cut off: {last}"
        ) from last
    if recovery.unloaded and checkpoint is not None:
        _load(mesh, recovery, engine, checkpoint)
    return mesh


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


def _attempt(recovery: Recovery, engine: Any, *, loads: bool) -> None:
    ranks = recovery.ranks
    survivors = ranks.left
    ranks.root.heal(("respawn", "spares"))
    blank = list(ranks.gone)
    if not survivors:
        raise DeviceMeshError(engine.name, "lost", -1, "no rank is left that holds them")
    specs = engine.templates.specs()
    meshes = {number: spec for number, spec in specs.items() if isinstance(spec, MeshSpec)}
    ranks.meet(list(specs.items()), sorted(meshes), (recovery.known, recovery.mark))
    held: dict[int, Held] = ranks.ask(survivors, "held")
    plan = plan_fill(held, blank, meshes, recovery.sources.ranks(), loads=loads)
    _check_lost(engine, plan, meshes)
    for rank, pieces in plan.blank.items():
        if pieces:
            recovery.unloaded.setdefault(rank, set()).update(pieces)
    _fill(recovery, plan, held, blank, meshes)
    _verify(engine, ranks.ask([*survivors, *blank], "digests"), held, plan, meshes)
    ranks.ask([*survivors, *blank], "finish")
    ranks.mended()
    engine.mended()
    recovery.mended()


def _check_lost(engine: Any, plan: FillPlan, meshes: dict[int, MeshSpec]) -> None:
    """Refuse to go on without a part of the state of a training.

    Raises:
        DeviceMeshError: it is lost.
    """
    loaded = {number for pieces in plan.blank.values() for number in pieces}
    state = [lost for number, lost in plan.lost_state.items() if number not in loaded]
    if not state:
        return
    shown = "; ".join(_shown(piece, ranks, meshes[piece.mesh]) for piece, ranks in state[:4])
    more = f"; and {len(state) - 4} more" if len(state) > 4 else ""
    raise DeviceMeshError(engine.name, "lost", state[0][1][0], f"{shown}{more}; load the last checkpoint")


def _shown(piece: HeldPart, ranks: list[int], spec: MeshSpec) -> str:
    over = ", ".join(
        f"dimension {dim} over {name}" for name, dim in zip(spec.names, piece.dims, strict=True) if dim >= 0
    )
    where = ", ".join(map(str, ranks))
    return f"the part of a tensor of shape {piece.whole[0]}, sharded {over or 'over nothing'}, on rank {where}"


def _fill(
    recovery: Recovery, plan: FillPlan, held: dict[int, Held], blank: list[int], meshes: dict[int, MeshSpec]
) -> None:
    calls: dict[int, Any] = {}
    for rank in plan.pieces:
        given = {number: recovery.sources.part(number, rank) for number in plan.given[rank]}
        pieces = dict(plan.pieces[rank])
        for number, part in given.items():
            pieces[number] = pieces[number]._replace(offset=0, shape=tuple(part.shape), stride=tuple(part.stride()))
        random = {}
        if rank in blank:
            for number, spec in meshes.items():
                states = (
                    one.random[number] for other, one in held.items() if other in spec.ranks and number in one.random
                )
                if rank in spec.ranks and (state := next(states, None)) is not None:
                    random[number] = state
        lost = plan.blank[rank], plan.failed[rank]
        arguments = plan.transfers, pieces, given, *lost, random, plan.dropped[rank], recovery.lost_leaves
        calls[rank] = (("exchange", *arguments), {})
    recovery.ranks.ask_each("heal", calls)


def _verify(
    engine: Any,
    digests: dict[int, dict[int, bytes]],
    held: dict[int, Held],
    plan: FillPlan,
    meshes: dict[int, MeshSpec],
) -> None:
    """Compare what ranks hold that should be the same.

    Raises:
        DeviceMeshError: it is not.
    """
    pieces: dict[int, HeldPart] = {}
    for one in held.values():
        pieces.update(one.pieces)
    seen: dict[tuple[int, tuple[int, ...]], tuple[int, bytes]] = {}
    dropped = {number for numbers in plan.dropped.values() for number in numbers}
    for rank, found in digests.items():
        for number, piece in pieces.items():
            spec = meshes[piece.mesh]
            if rank not in spec.ranks or number in dropped or number in plan.lost:
                continue
            key = number, same_part(spec, piece.dims, rank)
            digest = found.get(number, b"")
            other, expected = seen.setdefault(key, (rank, digest))
            if digest != expected:
                cause = f"it has another part of a tensor of shape {piece.whole[0]} than rank {other}"
                engine.broken = DeviceMeshError(engine.name, "torn", rank, cause)
                raise engine.broken
