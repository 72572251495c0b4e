"""Goes on with procs that were started again, or without those that were not, where each rank has values of its own.

The values of ranks that live stay. Those of a rank whose process has died are lost on this rank alone: what uses them
fails there, and in collectives of it, with an error that names them, until they are given new contents. So it is with
ranks that were left out, and come back: tensors are on them again, and have no value there.
"""

from __future__ import annotations

import warnings
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from monarch_hpc.core.errors import ActorDied, DeviceMeshError, MonarchError
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.description import text_of
from monarch_hpc.tensor.healing.ranks import RankLost, Ranks
from monarch_hpc.tensor.healing.shrink import region_without
from monarch_hpc.tensor.stream.engine import TensorEngine, View
from monarch_hpc.tensor.stream.failures import FailedOp
from monarch_hpc.tensor.stream.holdings import LateFrame, Rejoining
from monarch_hpc.tensor.stream.records import HALTED
from monarch_hpc.tensor.worker.values import lost_value

__all__ = ["Rejoin"]


class Rejoin:
    """The heals of an engine without versions.

    Args:
        engine: the engine.
        ranks: its ranks.
    """

    def __init__(self, engine: TensorEngine, ranks: Ranks) -> None:
        self._engine = engine
        self._ranks = ranks
        self._hidden: WeakSet[View] = WeakSet()
        """Views that the engine does not list: none of their ranks is left, or another one has the same."""
        self._was_growing = False
        """Whether a rank was lost that was to be taken in: the others have stopped, and have lost nothing."""

    @property
    def _is_apt(self) -> bool:
        """Whether all tensors have values of their own on each rank."""
        return self._engine.recovery is None and not any(view.mesh for view in self._engine.views.values())

    def remedy(self) -> str:
        """What the program can do about a rank that dies, in words."""
        return "heal() of its procs starts it again, and other ranks keep their values" if self._is_apt else ""

    def run(self, region: Region | None) -> bool:
        """Go on, if the program has had the error, and has healed the procs; return whether it could.

        Args:
            region: the ranks that the program goes on with; None for all of them.

        Raises:
            DeviceMeshError: ranks have died meanwhile; procs can be healed again.
        """
        engine, ranks = self._engine, self._ranks
        with engine.lock:
            broken = engine.broken
            if broken is None or not self._is_apt:
                return False
            try:
                dead = ranks.look()
                replaced = [rank for rank in ranks.gone if rank not in dead]
                if dead and (region is None or not set(dead).isdisjoint(region.base_ranks())):
                    self._name_another(dead)
                    return False
                if not dead and not ((replaced or self._was_growing) and engine.is_told):
                    return False
                self._finish(f"rank {broken.rank} {broken.kind}: {broken.cause}")
                ranks.fence(broken.cause, stacks=False)
                self._join(region, dead, replaced)
            except (MonarchError, RankLost) as error:
                raise self._broken_again(error) from error
            return True

    def take_in(self, region: Region) -> None:
        """Go on with ranks of *region* that were left out, if the program has started their procs again.

        Raises:
            DeviceMeshError: a rank has died before all have met. The others can go on without those that were to come.
        """
        engine, ranks = self._engine, self._ranks
        with engine.lock:
            missing = sorted(engine.left_out.intersection(region.base_ranks()))
            if engine.broken is not None or not self._is_apt or ranks.absent(missing):
                return
            engine.wait()
            engine.stop_to_grow()
            self._was_growing = True
            try:
                ranks.fence("it takes in ranks", stacks=False)
                self._join(None, [], [], missing)
            except (MonarchError, RankLost) as error:
                raise self._broken_again(error) from error

    def _name_another(self, dead: list[int]) -> None:
        """Have the error be about a rank that is still dead."""
        engine = self._engine
        assert engine.broken is not None
        if engine.broken.rank not in dead:
            engine.broken = None
            engine.lose(dead[0], self._ranks.gone[dead[0]])

    def _finish(self, cause: str) -> None:
        """Have ranks that live execute all that was issued, but collectives, which fail."""
        engine, issued = self._engine, self._engine.unacknowledged
        late = [
            LateFrame(view.ranks, base, len(sites), objects, array("q", ints).tobytes())
            for view, base, ints, objects, sites in issued
        ]
        sites = {base + place: site for _, base, _, _, of in issued for place, site in enumerate(of)}
        for rank, failures in self._ranks.finish(cause, engine.templates.all(), late).items():
            for failure in failures:
                if failure[0] != HALTED:  # of a frame that only drops values
                    engine.failures.add(FailedOp(rank, sites[failure[0]], failure))

    def _join(
        self, region: Region | None, dead: Sequence[int], replaced: Sequence[int], joined: Sequence[int] = ()
    ) -> None:
        """Have ranks meet again, without those that are *dead*, and with those of *joined*, which were left out."""
        engine, ranks = self._engine, self._ranks
        lost = [rank for rank in ranks.gone if rank not in dead and rank not in replaced]
        if lost:
            raise ranks.gone[lost[0]]
        present = (*(rank for rank in ranks.world if rank not in dead), *joined)
        addresses, specs = ranks.addresses(present), list(engine.templates.specs().items())
        orders: dict[int, Any] = {}
        places = self._larger(joined)
        new = {*replaced, *joined, *_returning(places)}
        for rank in present:
            before = engine.next_value if rank in new else 0
            orders[rank] = (Rejoining(engine.epoch, addresses, present, specs, before),), {}
        ranks.ask_each("rejoin", orders)
        if dead and region is not None:
            self._leave_out(region, dead)
        if joined:
            self._spread(joined, places)
        ranks.mended()
        engine.mended()
        self._was_growing = False
        if new and engine.is_seeded:
            shown = ", ".join(map(str, sorted(new)))
            text = (
                f"the random numbers of rank {shown} of {engine.name} begin anew with its process: seed the mesh again"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _leave_out(self, region: Region, dead: Sequence[int]) -> None:
        """Move views with dead ranks to those of them that are in *region*; others have no tensors any more."""
        engine, kept = self._engine, set(region.base_ranks())
        places: dict[View, Region | None] = {}
        for view in engine.views.values():
            is_hit = not set(dead).isdisjoint(view.ranks)
            places[view] = region_without(view.region, set(view.ranks) - kept) if is_hit else view.region
        self._move(places)
        self._ranks.leave_out(dead)
        engine.left_out |= frozenset(dead)
        engine.num_ranks = len(self._ranks.world)

    def _larger(self, joined: Sequence[int]) -> dict[View, Region | None]:
        """Where views are once some ranks are back: all of their ranks that are there, if they are whole rows."""
        if not joined:
            return {}
        left_out = self._engine.left_out.difference(joined)
        places: dict[View, Region | None] = {}
        for view in (*self._engine.views.values(), *self._hidden):
            larger = region_without(view.whole, left_out)
            is_there = left_out.isdisjoint(view.ranks)
            places[view] = larger if larger is not None or not is_there else view.region
        return places

    def _spread(self, joined: Sequence[int], places: dict[View, Region | None]) -> None:
        """Move views to ranks that are back."""
        engine = self._engine
        self._hidden.clear()
        listed: set[int] = set()
        for view in places:
            if id(view.dead) in listed:  # what was dropped so far is dropped by the other one, on all ranks that had it
                view.dead = deque()
            listed.add(id(view.dead))
        self._move(places)
        self._ranks.take_in(joined)
        engine.left_out = engine.left_out.difference(joined)
        engine.num_ranks = len(self._ranks.world)

    def _move(self, places: dict[View, Region | None]) -> None:
        """Move all views, and so their tensors; those without a place have none any more, until ranks come back."""
        engine = self._engine
        engine.views = {}
        for view, region in places.items():
            if region is None:
                view.dead.clear()
                self._hidden.add(view)
                continue
            if region != view.region:
                view.move(region)
            other = engine.views.setdefault((region, False), view)
            if other is not view:  # a slice that had these ranks before: values of both are dropped by one
                other.dead += view.dead
                view.dead = other.dead
                self._hidden.add(view)

    def _broken_again(self, error: BaseException) -> DeviceMeshError:
        """Note that the mesh has lost a rank while others were to meet again."""
        engine, cause = self._engine, error.__cause__ if isinstance(error, RankLost) else error
        rank = next((rank for rank, problem in self._ranks.gone.items() if problem is cause), -1)
        host, lines = (cause.host, cause.last_lines) if isinstance(cause, ActorDied) else ("", ())
        shown = f"it was lost while others were to meet again: {text_of(cause or error)}"
        engine.broken = DeviceMeshError(engine.name, "died", rank, shown, host, lines, remedy=self.remedy())
        engine.is_told = True
        return engine.broken

    def lost_error(self, root: int) -> DeviceMeshError:
        """The error of a value that was in a process which has died."""
        rank, number = lost_value(root)
        engine = self._engine
        shown = "" if engine.recovery is not None else self._described(rank, number)
        cause = (
            f"the value{shown} on rank {rank} was in its process that died, or was left out; give it another one, also "
            "on this rank: "
            "t.data = t.detach().slice_mesh(...).to_mesh(mesh) takes that of a rank that has it, "
            "and t.data = torch.zeros(...) a new one"
        )
        return DeviceMeshError(engine.name, "lost", rank, cause)

    def _described(self, rank: int, number: int) -> str:
        """The type and shape of a value, as a rank says that has it."""
        for other in self._ranks.world:
            try:
                found = self._ranks.ask([other], "described", number)[other] if other != rank else ""
            except RankLost:
                continue
            if found:
                return f" of a tensor, {found},"
        return ""


def _returning(places: dict[View, Region | None]) -> set[int]:
    """The ranks that views come to; those that live have missed what was written to their values meanwhile."""
    return {
        rank
        for view, region in places.items()
        for rank in (() if region is None else region.base_ranks())
        if rank not in view.ranks
    }
