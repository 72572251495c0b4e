"""The ranks of an engine in a heal: asks those that live, and ends those that do not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.core.errors import ActorDied, CallTimeout, DeviceMeshError, MonarchError, SupervisionError
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.stream.engine import TensorEngine
from monarch_hpc.tensor.stream.holdings import RankStatus, WorkerPlace
from monarch_hpc.tensor.worker.actor import TensorWorker
from monarch_hpc.tensor.worker.control import TensorControl

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
        abort: ends the collectives of the ranks that live; takes the cause.
        timeout_s: longest wait for a rank to come out of what it does.

    Attributes:
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
        abort: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self.root = root
        self._workers = workers
        self._control = control
        self._abort = abort
        self._timeout_s = timeout_s
        self._base_ranks = tuple(root.region.base_ranks())
        self.gone: dict[int, BaseException] = {}
        self.places: dict[int, WorkerPlace] = {}
        self._unwatched: set[int] = set()
        self._surveyed: DeviceMeshError | None = None
        self.whole = self.incarnations()

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self._base_ranks)

    @property
    def left(self) -> list[int]:
        """The ranks that hold the state."""
        return [rank for rank in self._base_ranks if rank not in self.gone]

    def incarnations(self) -> dict[int, int]:
        """The procs that are there."""
        return dict(zip(self._base_ranks, (proc.incarnation for proc in self.root.procs), strict=True))

    def ask(self, ranks: Iterable[int], method: str, *arguments: Any, **options: Any) -> dict[int, Any]:
        """Call a method of `RankHealing` on some ranks, all at once; return the answers.

        Raises:
            RankLost: one did not answer.
        """
        each = dict.fromkeys(ranks, (arguments, options))
        return self.ask_each("heal", {rank: ((method, *given), opts) for rank, (given, opts) in each.items()})

    def ask_each(
        self,
        method: str,
        calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]],
        timeout_s: float | None = None,
        *,
        control: bool = False,
    ) -> dict[int, Any]:
        """Call an endpoint of some workers, or control actors, with arguments of their own; return the answers.

        Raises:
            RankLost: one did not answer; the others have.
        """
        mesh: ActorMesh[Any] = self._control if control else self._workers
        futures = {}
        answers: dict[int, Any] = {}
        failed: dict[int, BaseException] = {}
        for rank, (arguments, options) in calls.items():
            one = mesh.slice(procs=self._base_ranks.index(rank))
            try:
                futures[rank] = getattr(one, method).options(timeout=timeout_s).call_one(*arguments, **options)
            except MonarchError as error:
                failed[rank] = error
        if not control:
            for future in futures.values():
                future.add_done_callback(self._free_others)
        for rank, future in futures.items():
            problem = future.exception()
            if problem is None:
                answers[rank] = future.result()
            else:
                failed[rank] = problem
        for rank, problem in failed.items():
            if isinstance(problem, (SupervisionError, CallTimeout)):
                self.gone[rank] = problem
        if failed:
            first = min(failed)
            raise RankLost(f"rank {first} in {method}: {failed[first]}") from failed[first]
        return answers

    def _free_others(self, done: Future[Any]) -> None:
        """End the collectives of ranks that may wait for one that has failed; on the driver."""
        problem = done.exception()
        if problem is not None:
            self._abort(f"a rank was lost while its mesh was healed: {problem}")

    def fence(self, cause: str, *, stacks: bool) -> dict[int, RankStatus]:
        """Have all ranks that live stop, and begin the next epoch; return how far they have come.

        Args:
            cause: why.
            stacks: whether to ask first where they are.
        """
        self.gone.clear()
        engine = self._engine
        with engine.lock:
            engine.epoch += 1
        now = self.incarnations()
        for rank, incarnation in self.whole.items():
            if now[rank] != incarnation:
                self.gone[rank] = DeviceMeshError(engine.name, "died", rank, "its proc was started again")
        self.places = self._each_of("place", self.left, (), control=True) if stacks else {}
        self._each_of("abort", self.left, (cause,), control=True)
        statuses = self._statuses()
        for rank, error in list(self.gone.items()):
            if isinstance(error, CallTimeout):
                self._each_of("leave", [rank], (), control=True)
                self.gone[rank] = error
        return statuses

    def _statuses(self) -> dict[int, RankStatus]:
        """Have ranks stop; wait for those that execute further operations meanwhile, as others have left them."""
        before = dict(self.places)
        statuses: dict[int, RankStatus] = {}
        left = self.left
        while left:
            statuses.update(self._each_of("heal", left, ("status", self._engine.epoch)))
            late = [rank for rank in left if isinstance(self.gone.get(rank), CallTimeout)]
            now: dict[int, WorkerPlace] = self._each_of("place", late, (), control=True)
            left = [rank for rank in late if rank in now and now[rank].seq != getattr(before.get(rank), "seq", None)]
            for rank in left:
                del self.gone[rank]
            before = now
        return statuses

    def _each_of(
        self, method: str, ranks: Iterable[int], arguments: tuple[Any, ...], *, control: bool = False
    ) -> dict[int, Any]:
        """Call some ranks; return the answers of those that give one."""
        found: dict[int, Any] = {}
        asked = list(ranks)
        while asked:
            calls: dict[int, Any] = {rank: (arguments, {}) for rank in asked}
            try:
                return {**found, **self.ask_each(method, calls, self._timeout_s, control=control)}
            except RankLost as error:
                kept = [rank for rank in asked if rank not in self.gone]
                if len(kept) == len(asked):
                    raise MonarchError(str(error)) from error
                asked = kept
        return found

    def meet(self, specs: list[tuple[int, Any]], meshes: list[int], at: tuple[int, int]) -> None:
        """Have all ranks make their process groups anew; arguments as of `TensorWorker.join`."""
        ranks, epoch = self._base_ranks, self._engine.epoch
        addresses = {rank: self._address(rank) for rank in ranks}
        self.ask_each("begin", {rank: ((epoch,), {}) for rank in ranks}, control=True)
        self.ask_each("join", {rank: ((specs, meshes, epoch, addresses, at), {}) for rank in ranks})

    def _address(self, rank: int) -> str:
        from monarch_hpc.transport.address import parse_address

        proc = self.root.procs[self._base_ranks.index(rank)]
        return str(parse_address(proc.addresses[0])[0])

    def watch(self, ranks: Iterable[int]) -> None:
        """Learn when ranks die, or stop by themselves."""
        for rank in ranks:
            self._unwatched.discard(rank)
            future = self._control.slice(procs=self._base_ranks.index(rank)).watch.call_one()
            future.add_done_callback(partial(self._note_end, rank))

    def _note_end(self, rank: int, done: Future[Any]) -> None:
        """Note what a rank has said of its end; on the driver."""
        error = done.exception()
        if error is not None:
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
            self._each_of("place", self._base_ranks, (), control=True)
        dead = {rank: error for rank, error in self.gone.items() if isinstance(error, ActorDied)}
        if dead:
            engine.broken = None
            engine.lose(min(dead), dead[min(dead)])
        self._surveyed = engine.broken

    def mended(self) -> None:
        """Go on with all ranks, of which some were started again."""
        now = self.incarnations()
        self.watch([rank for rank in self._base_ranks if rank in self._unwatched or now[rank] != self.whole[rank]])
        self.whole = now
        self.gone.clear()
