"""The ranks of an engine in a heal: asks those that live, and ends those that do not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import ActorDied, CallTimeout, DeviceMeshError, MeshDied, MonarchError, SupervisionError
from monarch_hpc.core.text.description import text_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.healing.shrink import flat_region
from monarch_hpc.tensor.stream.engine import TensorEngine
from monarch_hpc.tensor.stream.holdings import LateFrame, RankStatus, WorkerPlace
from monarch_hpc.tensor.worker.actor import TensorWorker
from monarch_hpc.tensor.worker.control import TensorControl
from monarch_hpc.tensor.worker.report import OpFailure
from monarch_hpc.transport.address import parse_address

__all__ = ["RankLost", "Ranks"]


class RankLost(Exception):
    """A rank died, or failed, in a heal."""


class Ranks:
    """The procs of an engine.

    Args:
        engine: the engine.
        root: its procs.
        workers: their workers, along one dimension, ``procs``.
        control: their control actors, likewise.
        abort: ends the collectives of the ranks that live; takes the cause, and the epoch.
        timeout_s: longest wait for a rank to come out of what it does.

    Attributes:
        world: the ranks that take part.
        gone: ranks that have died, or do not answer, with the error that says so.
        places: where ranks were when the others were stopped; of those that left the order by themselves only.
        whole: incarnations of the procs that hold the state, by rank.
    """

    def __init__(
        self,
        engine: TensorEngine,
        root: ProcMesh,
        workers: ActorMesh[TensorWorker],
        control: ActorMesh[TensorControl],
        abort: Callable[[str, int], None],
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self._all = self._root = root
        self._workers = workers
        self._control = control
        self._abort = abort
        self._timeout_s = timeout_s
        self.world = tuple(root.region.base_ranks())
        self._places = {rank: place for place, rank in enumerate(self.world)}
        self.gone: dict[int, BaseException] = {}
        self.places: dict[int, WorkerPlace] = {}
        self._watched: dict[int, int] = {}
        self._unwatched: set[int] = set()
        self._surveyed: DeviceMeshError | None = None
        self.whole = self.incarnations()

    @property
    def left(self) -> list[int]:
        """The ranks that hold the state."""
        return [rank for rank in self.world if rank not in self.gone]

    def incarnations(self) -> dict[int, int]:
        """The procs of the ranks that take part."""
        procs = self._procs()
        return {rank: procs[rank].incarnation for rank in self.world}

    def _procs(self) -> dict[int, ProcRef]:
        return dict(zip(self._all.region.base_ranks(), self._all.procs, strict=True))

    def ask(self, ranks: Iterable[int], method: str, *arguments: Any, **options: Any) -> dict[int, Any]:
        """Call a method of `RankHealing` on some ranks, all at once; return the answers.

        Raises:
            RankLost: one did not answer.
        """
        return self.begin_asking(ranks, method, *arguments, **options)()

    def begin_asking(
        self, ranks: Iterable[int], method: str, *arguments: Any, **options: Any
    ) -> Callable[[], dict[int, Any]]:
        """Call likewise; return what waits for the answers."""
        given = (method, *arguments), options
        return self._begin([(rank, self._workers, "heal", given) for rank in ranks], None)

    def ask_each(
        self, method: str, calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]], timeout_s: float | None = None
    ) -> dict[int, Any]:
        """Call an endpoint of some workers with arguments of their own; return the answers.

        Raises:
            RankLost: one did not answer; the others have.
        """
        return self._begin([(rank, self._workers, method, given) for rank, given in calls.items()], timeout_s)()

    def _begin(
        self, calls: list[tuple[int, ActorMesh[Any], str, Any]], timeout_s: float | None, ended: int | None = None
    ) -> Callable[[], dict[int, Any]]:
        """Call endpoints of ranks, of workers or control actors; return what waits for the workers' answers.

        Args:
            calls: ranks, their actors, endpoints and arguments.
            timeout_s: longest wait.
            ended: the epoch whose collectives end if one fails; None for that of this attempt.
        """
        futures: list[tuple[int, str, Future[Any], bool]] = []
        failed: dict[int, tuple[str, BaseException]] = {}
        free = partial(self._free_others, self._engine.epoch if ended is None else ended)
        for rank, mesh, method, (arguments, options) in calls:
            one = mesh.slice(procs=self._places[rank])
            try:
                future = getattr(one, method).options(timeout=timeout_s).call_one(*arguments, **options)
            except MonarchError as error:
                failed[rank] = method, error
                continue
            futures.append((rank, method, future, mesh is self._control))
            if mesh is not self._control:
                future.add_done_callback(free)

        def wait() -> dict[int, Any]:
            answers: dict[int, Any] = {}
            for rank, method, future, of_control in futures:
                problem = future.exception()
                if problem is not None:
                    failed.setdefault(rank, (method, problem))
                elif not of_control or rank not in answers:
                    answers[rank] = future.result()
            for rank, (_, problem) in failed.items():
                if isinstance(problem, (SupervisionError, CallTimeout)):
                    self.gone[rank] = problem
            if failed:
                first = min(rank for rank in failed if rank in self.gone or self.gone.keys().isdisjoint(failed))
                method, problem = failed[first]
                raise RankLost(f"rank {first} in {method}: {problem}") from problem
            return answers

        return wait

    def _free_others(self, epoch: int, done: Future[Any]) -> None:
        """End the collectives of ranks that may wait for one that has failed; on the driver."""
        problem = done.exception()
        if problem is not None:
            self._abort(f"a rank was lost while its mesh was healed: {problem}", epoch)

    def fence(self, cause: str, *, stacks: bool) -> dict[int, RankStatus]:
        """Have all ranks that live stop, and begin the next epoch; return how far they have come.

        Args:
            cause: why.
            stacks: whether to ask first where they are.
        """
        with self._engine.lock:
            self._engine.epoch += 1
        self.note_replaced()
        self.places = self._each_of("place", self.left, (), of_control=True) if stacks else {}
        statuses = self._statuses(cause)
        for rank, error in list(self.gone.items()):
            if isinstance(error, CallTimeout):
                self._each_of("leave", [rank], (), of_control=True)
                self.gone[rank] = error
        return statuses

    def note_replaced(self) -> list[int]:
        """Note which ranks have other processes than those that held the state; forget other losses."""
        self.gone.clear()
        now = self.incarnations()
        for rank, incarnation in self.whole.items():
            if now[rank] != incarnation:
                self.gone[rank] = DeviceMeshError(self._engine.name, "died", rank, "its proc was started again")
        return list(self.gone)

    def look(self) -> list[int]:
        """Note which ranks have died that were not replaced, and return them."""
        replaced = set(self.note_replaced())
        self._each_of("place", self.world, (), of_control=True)
        return [rank for rank in self.gone if rank not in replaced]

    def absent(self, ranks: Sequence[int]) -> list[int]:
        """Those of some ranks that were left out whose procs are dead; no rank is lost meanwhile."""
        self._each_of("place", ranks, (), of_control=True)
        found = [rank for rank in ranks if rank in self.gone]
        self.gone.clear()
        return found

    def finish(self, cause: str, specs: list[tuple[int, Any]], frames: list[LateFrame]) -> dict[int, list[OpFailure]]:
        """End the collectives of this epoch, and have ranks execute what was issued in it; return what failed in it."""
        return self._answers("finish", (specs, frames), (cause, self._engine.epoch))

    def _statuses(self, cause: str) -> dict[int, RankStatus]:
        """Have ranks stop."""
        epoch = self._engine.epoch
        return self._answers("heal", ("status", epoch), (cause, epoch - 1))

    def _answers(self, method: str, arguments: tuple[Any, ...], aborts: tuple[str, int]) -> dict[int, Any]:
        """Call the ranks that are left; wait for those that execute further operations meanwhile, as others have left.

        Args:
            method: of the workers; to call it twice does no harm.
            arguments: its arguments.
            aborts: see `_each_of`.
        """
        before = dict(self.places)
        statuses: dict[int, Any] = {}
        left = self.left
        while left:
            statuses.update(self._each_of(method, left, arguments, aborts=aborts))
            late = [rank for rank in left if isinstance(self.gone.get(rank), CallTimeout)]
            now: dict[int, WorkerPlace] = self._each_of("place", late, (), of_control=True)
            left = [rank for rank in late if rank in now and now[rank].seq != getattr(before.get(rank), "seq", None)]
            for rank in left:
                del self.gone[rank]
            before = now
        return statuses

    def _each_of(
        self,
        method: str,
        ranks: Iterable[int],
        arguments: tuple[Any, ...],
        *,
        of_control: bool = False,
        aborts: tuple[str, int] | None = None,
    ) -> dict[int, Any]:
        """Call some ranks; return the answers of those that give one.

        Args:
            method: of the workers.
            ranks: the ranks.
            arguments: its arguments.
            of_control: whether it is one of the control actors.
            aborts: the cause and the epoch whose collectives are ended with it, so that workers come to answer.
        """
        found: dict[int, Any] = {}
        asked = list(ranks)
        mesh: ActorMesh[Any] = self._control if of_control else self._workers
        while asked:
            calls: list[Any] = (
                [] if aborts is None else [(rank, self._control, "abort", (aborts, {})) for rank in asked]
            )
            calls += [(rank, mesh, method, (arguments, {})) for rank in asked]
            try:
                return {**found, **self._begin(calls, self._timeout_s, None if aborts is None else aborts[1])()}
            except RankLost as error:
                kept = [rank for rank in asked if rank not in self.gone]
                if len(kept) == len(asked):
                    raise MonarchError(str(error)) from error
                asked = kept
        return found

    def revive(self, policy: Sequence[str], timeout_s: float | None) -> dict[int, str]:
        """Start dead procs again; return those for which there is no way, with the cause.

        Raises:
            RankLost: one has died that was there in this attempt, and was started again.
        """
        dead: dict[int, str] = {}
        if policy:
            try:
                self._root.heal(policy, timeout_s)
            except MeshDied as error:
                ranks = tuple(self._root.region.base_ranks())
                dead = {ranks[place]: text_of(problem) for place, problem in error.failures.items()}
        else:
            dead = {rank: text_of(error) for rank, error in self.gone.items()}
        now = self.incarnations()
        for rank in self.left:
            if now[rank] != self.whole[rank] or rank in dead:
                self.gone[rank] = DeviceMeshError(self._engine.name, "died", rank, "it died while others were started")
                raise RankLost(f"rank {rank} died while others were started")
        return dead

    def bring_back(self, ranks: Sequence[int], policy: Sequence[str], timeout_s: float | None) -> dict[int, str]:
        """Start procs of ranks that were left out, if they are dead; return those for which there is no way."""
        try:
            self._all._viewing(flat_region(tuple(ranks))).heal(policy, timeout_s)
        except MeshDied as error:
            return {ranks[place]: text_of(problem) for place, problem in error.failures.items()}
        return {}

    def addresses(self, ranks: Iterable[int]) -> dict[int, str]:
        """The IP addresses of ranks."""
        procs = self._procs()
        return {rank: str(parse_address(procs[rank].addresses[0])[0]) for rank in ranks}

    def leave_out(self, ranks: Iterable[int]) -> None:
        """Go on without some ranks."""
        left_out = set(ranks)
        self._go_on_with([rank for rank in self.world if rank not in left_out])

    def take_in(self, ranks: Iterable[int]) -> None:
        """Go on with ranks that were left out."""
        self._go_on_with([*self.world, *ranks])

    def _go_on_with(self, ranks: Iterable[int]) -> None:
        self.world = tuple(sorted(ranks, key=self._places.__getitem__))
        self._root = self._all._viewing(flat_region(self.world))

    def watch(self, ranks: Iterable[int]) -> None:
        """Learn when ranks die, or stop by themselves."""
        procs = self._procs()
        for rank in ranks:
            self._unwatched.discard(rank)
            self._watched[rank] = procs[rank].incarnation
            future = self._control.slice(procs=self._places[rank]).watch.call_one()
            future.add_done_callback(partial(self._note_end, rank))

    def _note_end(self, rank: int, done: Future[Any]) -> None:
        """Note what a rank has said of its end; on the driver."""
        error = done.exception()
        if error is not None:
            if rank not in self._engine.left_out:
                self._engine.lose(rank, error)
            return
        self._unwatched.add(rank)
        epoch, cause = done.result()
        if epoch == self._engine.epoch:
            self._engine.suspect(rank, cause)

    def survey(self) -> None:
        """Name a rank that has died, where others have only missed it in a collective."""
        engine = self._engine
        if engine.broken is None or engine.broken is self._surveyed or engine.broken.kind != "diverged":
            return
        with contextlib.suppress(MonarchError):
            self._each_of("place", self.world, (), of_control=True)
        dead = {rank: error for rank, error in self.gone.items() if isinstance(error, ActorDied)}
        if dead:
            engine.broken = None
            engine.lose(min(dead), dead[min(dead)])
        self._surveyed = engine.broken

    def mended(self) -> None:
        """Go on with all ranks, of which some were started again."""
        now = self.incarnations()
        self.watch([rank for rank in self.world if rank in self._unwatched or now[rank] != self._watched.get(rank)])
        self.whole = now
        self.gone.clear()
