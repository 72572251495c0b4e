"""Goes on with procs that were started again, or without those that were not, where each rank has values of its own.

The values of ranks that live stay. Those of a rank whose process has died are lost on this rank alone: what uses them
fails there, and in collectives of it, with an error that names them, until they are given new contents.
"""

from __future__ import annotations

import warnings
from array import array
from typing import Any

from monarch_hpc.core.errors import ActorDied, DeviceMeshError, MonarchError
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.description import text_of
from monarch_hpc.tensor.healing.ranks import RankLost, Ranks
from monarch_hpc.tensor.healing.shrink import region_without
from monarch_hpc.tensor.stream.engine import TensorEngine
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
                if not dead and not (replaced and engine.is_told):
                    return False
                self._finish(f"rank {broken.rank} {broken.kind}: {broken.cause}")
                ranks.fence(broken.cause, stacks=False)
                self._join(region, dead, replaced)
            except (MonarchError, RankLost) as error:
                raise self._broken_again(error) from error
            return True

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

    def _join(self, region: Region | None, dead: list[int], replaced: list[int]) -> None:
        """Have ranks meet again."""
        engine, ranks = self._engine, self._ranks
        lost = [rank for rank in ranks.gone if rank not in dead and rank not in replaced]
        if lost:
            raise ranks.gone[lost[0]]
        present = tuple(rank for rank in ranks.world if rank not in dead)
        addresses, specs = ranks.addresses(present), list(engine.templates.specs().items())
        orders: dict[int, Any] = {}
        for rank in present:
            before = engine.next_value if rank in replaced else 0
            orders[rank] = (Rejoining(engine.epoch, addresses, present, specs, before),), {}
        ranks.ask_each("rejoin", orders)
        if dead and region is not None:
            self._leave_out(region, dead)
        ranks.mended()
        engine.mended()
        if replaced and engine.is_seeded:
            shown = ", ".join(map(str, replaced))
            text = (
                f"the random numbers of rank {shown} of {engine.name} begin anew with its process: seed the mesh again"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _leave_out(self, region: Region, dead: list[int]) -> None:
        """Move views with dead ranks to those of them that are in *region*; others have no tensors any more."""
        engine, kept = self._engine, set(region.base_ranks())
        views, engine.views = engine.views, {}
        for key, view in views.items():
            if not set(dead).isdisjoint(view.ranks):
                smaller = region_without(view.region, set(view.ranks) - kept)
                if smaller is None:
                    view.dead.clear()
                    continue
                view.move(smaller)
                key = smaller, False
            other = engine.views.setdefault(key, view)
            if other is not view:  # a slice that had these ranks before: values of both are dropped by one
                other.dead += view.dead
                view.dead = other.dead
        self._ranks.leave_out(dead)
        engine.left_out |= frozenset(dead)
        engine.num_ranks = len(self._ranks.world)

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
            f"the value{shown} on rank {rank} was in its process that died; give it another one, also on this rank: "
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
