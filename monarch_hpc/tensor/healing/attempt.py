"""One attempt to heal a mesh: starts ranks again, leaves rows out or takes them in, and gives all ranks the state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.core.shape import Region
from monarch_hpc.tensor.healing.boxes import box_of
from monarch_hpc.tensor.healing.plan import FillPlan, plan_fill
from monarch_hpc.tensor.healing.shrink import larger_regions, region_without, smaller_regions
from monarch_hpc.tensor.stream.engine import TensorEngine, View
from monarch_hpc.tensor.stream.holdings import Held, HeldPart, Restoring
from monarch_hpc.tensor.stream.records import MeshSpec

if TYPE_CHECKING:
    from monarch_hpc.tensor.healing.recovery import Recovery

__all__ = ["HealAttempt"]


class _Layout(NamedTuple):
    """The mesh as it is to be.

    Attributes:
        region: the mesh.
        left_out: ranks that it has no more.
        joined: ranks that it had left out, and has again.
        meshes: its parts with sharded tensors, by number.
        plan: how its ranks get their state.
    """

    region: Region
    left_out: frozenset[int]
    joined: tuple[int, ...]
    meshes: dict[int, MeshSpec]
    plan: FillPlan


class HealAttempt:
    """One attempt, after the version was decided; another one follows if a rank dies in it.

    Args:
        recovery: the versions of the mesh.
        engine: its engine.
        region: the mesh, of which rows may be left out.
        whole: the mesh before ranks were left out, which are to come back; None if they are not.
    """

    def __init__(self, recovery: Recovery, engine: TensorEngine, region: Region, whole: Region | None) -> None:
        self._recovery = recovery
        self._engine = engine
        self._ranks = recovery.ranks
        self._region = region
        self._whole = whole
        self._specs = engine.templates.specs()

    def run(self, policy: Sequence[str], timeout_s: float | None, *, loads: bool) -> Region:
        """Heal the mesh; return it as it is then.

        Args:
            policy: see `heal_mesh`.
            timeout_s: seconds for procs to come back; None for config key `procs.heal_s`.
            loads: whether state that is lost comes from a checkpoint afterwards.

        Raises:
            RankLost: a rank was lost meanwhile.
            DeviceMeshError: the mesh cannot be healed.
        """
        ranks, recovery = self._ranks, self._recovery
        survivors = ranks.left
        if not survivors:
            raise DeviceMeshError(self._engine.name, "lost", -1, "no rank is left that holds them")
        held_by = ranks.begin_asking(survivors, "held", recovery.known, recovery.mark)
        propagated_by = self._begin_packing()
        # While replacements are forked, and load what is not preloaded.
        starting = [step for step in policy if step != "shrink"]
        dead = ranks.revive(starting, timeout_s)
        absent = {} if self._whole is None else ranks.bring_back(sorted(self._engine.left_out), starting, timeout_s)
        blank = [rank for rank in ranks.gone if rank not in dead]
        held: dict[int, Held] = held_by()
        layout = self._larger_layout(held, blank, absent) if self._whole is not None and not dead else None
        if layout is None:
            layout = self._layout(held, blank, dead, loads=loads, shrinks="shrink" in policy)
        region, left_out, joined, meshes, plan = layout
        self._check_lost(plan, meshes)
        for rank, pieces in plan.blank.items():
            if pieces:
                recovery.unloaded.setdefault(rank, set()).update(pieces)
        before, propagated = self._meshes(), propagated_by()
        moved = [number for number, spec in meshes.items() if spec != before[number]]
        self._specs.update(meshes)
        blank = [*(rank for rank in blank if rank not in left_out), *joined]
        present = [*survivors, *blank]
        world = [*(rank for rank in ranks.world if rank not in left_out), *joined]
        orders = self._orders(plan, held, blank, meshes, present, world, propagated, moved)
        digests = ranks.ask_each("restore", {rank: ((order,), {}) for rank, order in orders.items()})
        self._verify({rank: digests[rank] for rank in world}, held, plan, meshes)
        if left_out or joined:
            self._move(region, left_out, joined, meshes)
        ranks.mended()
        self._engine.mended(recovery.to_issue_again())
        recovery.mended()
        return region

    def _layout(
        self, held: dict[int, Held], blank: list[int], dead: dict[int, str], *, loads: bool, shrinks: bool
    ) -> _Layout:
        """The mesh with the same ranks, or with fewer if some cannot be started."""
        meshes = self._meshes()
        kept = self._recovery.sources.boxes()
        if not dead:
            plan = plan_fill(held, blank, meshes, kept, loads=loads)
            return _Layout(self._region, frozenset(), (), meshes, plan)
        found: list[_Layout] = []
        smaller = smaller_regions(self._region, dead) if shrinks else []
        for region in smaller:
            left_out = frozenset(self._region.base_ranks()) - frozenset(region.base_ranks())
            parts = self._meshes_without(meshes, region, left_out)
            plan = plan_fill(held, [rank for rank in blank if rank not in left_out], parts, kept, loads=loads)
            found.append(_Layout(region, left_out, (), parts, plan))
            if not plan.lost_state:
                return found[-1]
        if found:
            return found[0]
        rank = min(dead)
        why = "the ranks that live do not make up a row" if shrinks else "the policy does not shrink it"
        cause = f"its procs could not be started: {dead[rank]}; {why}"
        raise DeviceMeshError(self._engine.name, "died", rank, cause)

    def _larger_layout(self, held: dict[int, Held], blank: list[int], absent: dict[int, str]) -> _Layout | None:
        """The largest mesh with ranks that were left out; None if there is none."""
        assert self._whole is not None
        meshes, world = self._meshes(), self._ranks.world
        for region in larger_regions(self._whole, world, absent):
            joined = tuple(rank for rank in region.base_ranks() if rank not in world)
            parts = dict(meshes)
            for view in self._engine.views.values():
                if view.mesh:
                    larger = self._larger(view, joined)
                    sizes, ranks = larger.extent.shape, tuple(larger.base_ranks())
                    parts[view.mesh] = meshes[view.mesh]._replace(sizes=sizes, ranks=ranks)
            plan = plan_fill(held, [*blank, *joined], parts, self._recovery.sources.boxes())
            if not plan.lost_state:
                return _Layout(region, frozenset(), joined, parts, plan)
        return None

    def _larger(self, view: View, joined: Collection[int]) -> Region:
        """A view with those of its ranks that come back, if they are whole rows of it."""
        return region_without(view.whole, self._engine.left_out.difference(joined)) or view.region

    def _meshes(self) -> dict[int, MeshSpec]:
        return {number: spec for number, spec in self._specs.items() if isinstance(spec, MeshSpec)}

    def _begin_packing(self) -> Callable[[], dict[int, bytes]]:
        """Ask one rank of each mesh for what DTensor has worked out there, if others may need it."""
        sources: dict[int, list[int]] = {}
        for number, spec in self._meshes().items():
            left = [rank for rank in spec.ranks if rank not in self._ranks.gone]
            if left and (len(left) < len(spec.ranks) or self._whole is not None):
                sources.setdefault(left[0], []).append(number)
        asked = [(rank, self._ranks.begin_asking([rank], "propagated", numbers)) for rank, numbers in sources.items()]
        return lambda: {number: packed for rank, wait in asked for number, packed in wait()[rank].items()}

    def _smaller(self, view: View, region: Region, left_out: frozenset[int]) -> Region | None:
        """What is left of a view; None if its ranks do not make up whole rows of it any more."""
        return region if view.region == self._region else region_without(view.region, left_out)

    def _meshes_without(
        self, meshes: dict[int, MeshSpec], region: Region, left_out: frozenset[int]
    ) -> dict[int, MeshSpec]:
        """What is left of the parts of the mesh that have sharded tensors; without those of which nothing is left."""
        found: dict[int, MeshSpec] = {}
        for view in self._engine.views.values():
            smaller = self._smaller(view, region, left_out) if view.mesh else None
            if smaller is not None:
                sizes, ranks = smaller.extent.shape, tuple(smaller.base_ranks())
                found[view.mesh] = meshes[view.mesh]._replace(sizes=sizes, ranks=ranks)
        return found

    def _move(
        self, whole: Region, left_out: frozenset[int], joined: tuple[int, ...], meshes: dict[int, MeshSpec]
    ) -> None:
        """Move all views, and so their tensors, to the ranks that they have from here on, of the mesh *whole*."""
        engine = self._engine
        with engine.lock:
            views, engine.views = engine.views, {}
            for (_, is_sharded), view in views.items():
                region = self._larger(view, joined) if joined else self._smaller(view, whole, left_out)
                if region is None:
                    view.dead.clear()  # nobody has its tensors
                    continue
                view.move(region)
                engine.views[region, is_sharded] = view
                if is_sharded:
                    engine.templates.replace(("mesh", region), view.mesh, meshes[view.mesh])
            self._ranks.leave_out(left_out)
            self._ranks.take_in(joined)
            engine.left_out = (engine.left_out | left_out).difference(joined)
            engine.num_ranks = len(self._ranks.world)

    # ---- what ranks do ----

    def _orders(
        self,
        plan: FillPlan,
        held: dict[int, Held],
        blank: list[int],
        meshes: dict[int, MeshSpec],
        present: list[int],
        world: list[int],
        propagated: dict[int, bytes],
        moved: list[int],
    ) -> dict[int, Restoring]:
        recovery, engine = self._recovery, self._engine
        addresses = self._ranks.addresses(present)
        specs = list(self._specs.items())
        orders: dict[int, Restoring] = {}
        for rank in present:
            random: dict[int, Any] = {}
            if rank in blank:
                for number, spec in meshes.items():
                    states = (one.random[number] for one in held.values() if number in one.random)
                    if rank in spec.ranks and (state := next(states, None)) is not None:
                        random[number] = state
            given = [
                (number, put, recovery.sources.part(number, box, taken)) for number, box, taken, put in plan.given[rank]
            ]
            orders[rank] = Restoring(
                epoch=engine.epoch,
                version=recovery.known,
                mark=recovery.mark,
                addresses=addresses,
                present=tuple(sorted(present)),
                world=tuple(world),
                specs=specs,
                meshes=sorted(meshes),
                memories=plan.memories,
                parts=plan.parts,
                pieces=plan.pieces[rank],
                given=given,
                blank=plan.blank[rank],
                failed=plan.failed[rank],
                random=random,
                propagated={
                    number: packed
                    for number, packed in propagated.items()
                    if number in random or (number in moved and rank in meshes[number].ranks)
                },
                moved=moved,
                dropped=plan.dropped[rank],
                leaves=recovery.lost_leaves,
            )
        return orders

    def _check_lost(self, plan: FillPlan, meshes: dict[int, MeshSpec]) -> None:
        """Refuse to go on without a part of the state of a training.

        Raises:
            DeviceMeshError: it is lost.
        """
        loaded = {number for pieces in plan.blank.values() for number in pieces}
        state = [lost for number, lost in plan.lost_state.items() if number not in loaded]
        if not state:
            return
        shown = "; ".join(_shown(piece, ranks, self._specs[piece.mesh]) for piece, ranks in state[:4])
        more = f"; and {len(state) - 4} more" if len(state) > 4 else ""
        rank = state[0][1][0] if state[0][1] else -1
        raise DeviceMeshError(self._engine.name, "lost", rank, f"{shown}{more}; load the last checkpoint")

    def _verify(
        self,
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
        seen: dict[Any, tuple[int, bytes]] = {}
        dropped = {number for numbers in plan.dropped.values() for number in numbers}
        for rank, found in digests.items():
            for number, piece in pieces.items():
                spec = meshes.get(piece.mesh)
                if spec is None or rank not in spec.ranks or number in dropped or number in plan.lost:
                    continue
                key = number, box_of(spec, piece.dims, piece.whole[0], rank)
                digest = found.get(number, b"")
                other, expected = seen.setdefault(key, (rank, digest))
                if digest != expected:
                    cause = f"it has another part of a tensor of shape {piece.whole[0]} than rank {other}"
                    self._engine.broken = DeviceMeshError(self._engine.name, "torn", rank, cause)
                    raise self._engine.broken


def _shown(piece: HeldPart, ranks: list[int], spec: MeshSpec) -> str:
    over = ", ".join(
        f"dimension {dim} over {name}" for name, dim in zip(spec.names, piece.dims, strict=True) if dim >= 0
    )
    where = ", ".join(map(str, ranks)) if ranks else "ranks of which no rows are left"
    on = f"rank {where}" if ranks else where
    return f"the part of a tensor of shape {piece.whole[0]}, sharded {over or 'over nothing'}, on {on}"
