"""The state of a mesh, which is well or broken: notes losses of ranks, and says what has happened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from threading import RLock
from typing import Any

from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.errors import ActorDied, DeviceMeshError
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.description import text_of
from monarch_hpc.tensor.stream.failures import FailedOp, Failures
from monarch_hpc.tensor.stream.frames import Sequenced, failed_seqs, first_to_differ
from monarch_hpc.tensor.stream.issue_log import IssueLog
from monarch_hpc.tensor.stream.records import HALTED
from monarch_hpc.tensor.stream.versions import Versions
from monarch_hpc.tensor.worker.report import OpFailure

__all__ = ["EngineState"]


class EngineState:
    """The ranks of an engine as the program knows them.

    Args:
        name: the mesh of procs in messages.
        abort: ends the collectives of the ranks that live; takes the cause, and the epoch.
        failures: keeps what failed.

    Attributes:
        lock: held while a record is added.
        broken: why no operation can be issued; None if they can.
        epoch: number of attempts to have a mesh; what ranks answer to frames of earlier ones does not count.
        num_ranks: number of the ranks that take part.
        device: type of the device that has the parts of sharded tensors.
        left_out: ranks that a heal has left out, and that have not come back.
        recovery: keeps versions of the state, and decides which counts if a rank is lost; None without versions.
        unhealable: what the ranks hold that is in no version, so that there are none; empty if nothing is.
        log: what was issued since the last commit; None if nothing is issued again.
        heals: heals the mesh and issues again what was lost, or raises why not; None if that is left to the program.
        rejoins: goes on with procs that were started again, where each rank has values of its own, and returns whether
            it could; takes the ranks that the program goes on with, or None for all of them.
        takes_in: takes in ranks that a heal has left out, as far as the program has started their procs again.
        lost_error: the error of a value that was in a process that has died, by its `lost_root`.
        is_told: whether the program has had the error.
        remedy: what the program can do about a rank that dies, in words.
        is_seeded: whether the program has chosen the random numbers of ranks.
        survey: asks without versions which rank has died, where others have only missed it in a collective.
    """

    def __init__(self, name: str, abort: Callable[[str, int], None], failures: Failures) -> None:
        self.name, self.failures = name, failures
        self.lock = RLock()
        self.broken: DeviceMeshError | None = None
        self.epoch = self.num_ranks = 0
        self.device = "cpu"
        self.left_out: frozenset[int] = frozenset()
        self.recovery: Versions | None = None
        self.unhealable = ""
        self.log: IssueLog | None = None
        self.heals: Callable[[], None] | None = None
        self.rejoins: Callable[[Region | None], bool] = lambda _region: False
        self.takes_in: Callable[[Region], None] = lambda _region: None
        self.lost_error: Callable[[int], Exception] = KeyError
        self.remedy: Callable[[], str] = lambda: ""
        self.survey: Callable[[], None] = lambda: None
        self.is_told = self.is_seeded = False
        self._abort = abort
        self._io = current_runtime().engine

    def lose(self, rank: int, error: BaseException | None) -> None:
        """Note that *rank* is gone, and free the others, which may wait for it."""
        if self.broken is not None or error is None:
            return
        cause = getattr(error, "cause", "") or text_of(error)
        if isinstance(error, ActorDied):
            self._end("died", rank, str(cause), error.host, error.last_lines)
        else:
            self._end("torn", rank, str(cause))
        assert self.broken is not None
        self.broken.__cause__ = error

    def suspect(self, rank: int, cause: str) -> None:
        """Note that *rank* executes nothing more, because others may have left it."""
        if self.broken is None:
            self._end("diverged", rank, cause)

    def stop_to_grow(self) -> None:
        """Stop the ranks, which are to meet others."""
        if self.broken is None:
            self._end("grown", -1, "it was stopped to take in ranks")

    def failure(self) -> DeviceMeshError:
        """Why the mesh cannot go on; where this thread may wait, as a fact, for which the ranks are asked."""
        if not self._io.driving:
            (self.survey if self.recovery is None else self.recovery.settle)()
        assert self.broken is not None
        self.is_told = True
        return self.broken.with_traceback(None)  # it is raised again and again

    def check(self) -> None:
        """Refuse to go on while the mesh is broken; where it heals by itself, do that first.

        Where the program has had the error, and has started the procs again, go on with them.

        Raises:
            DeviceMeshError: it is.
        """
        with self.lock:
            if self.broken is None:
                return
            is_told, error = self.is_told, self.failure()
            if self._io.driving:
                raise error
            if self.heals is not None:
                self.heals()
            elif not is_told or self.broken is not error or not self.rejoins(None):
                raise self.failure()

    def check_present(self, ranks: Collection[int]) -> None:
        """Refuse ranks that a heal has left out.

        Raises:
            ValueError: there are some.
        """
        missing = sorted(self.left_out.intersection(ranks))
        if missing:
            raise ValueError(
                f"a heal has left out ranks {missing} of {self.name}: use the mesh that heal_mesh has returned, or its "
                "procs"
            )

    def _note_reports(self, frame: Sequenced, ranks: Sequence[int], reports: Sequence[Any], *, alike: bool) -> None:
        """Note what the ranks report of a frame.

        Args:
            ranks: the ranks.
            reports: their reports, or why there is none.
            alike: whether the same must have failed on all.
        """
        halted: tuple[int, str] | None = None
        for rank, report in zip(ranks, reports, strict=True):
            if isinstance(report, BaseException):
                self.lose(rank, report)
                continue
            failed: tuple[OpFailure, ...] = report
            for failure in failed:
                if failure[0] == HALTED:
                    halted = rank, failure[3]
                else:
                    self.failures.add(FailedOp(rank, frame.sites[failure[0] - frame.base], failure))
        if alike and len({failed_seqs(report) for report in reports}) > 1:
            self._note_difference(ranks, reports)
        if halted is not None:
            self.suspect(*halted)

    def _note_difference(self, ranks: Sequence[int], reports: Sequence[Any]) -> None:
        """Note that ranks of sharded tensors have failed in different operations, so that their values differ."""
        if self.broken is not None or any(isinstance(answer, BaseException) for answer in reports):
            return
        rank, failure = first_to_differ(ranks, reports)
        self._end("diverged", rank, f"it failed in {failure[1]}, and others did not: {failure[2]}: {failure[3]}")

    def forfeit(self, what: str) -> None:
        """Keep no versions from here on: ranks hold *what*, which no version includes."""
        with self.lock:
            self.unhealable, self.recovery = self.unhealable or what, None
            self.log = self.heals = None

    def _end(self, kind: str, rank: int, cause: str, host: str = "", last_lines: tuple[str, ...] = ()) -> None:
        epoch = self.epoch  # another thread may begin the next one once it sees the error
        self.broken = DeviceMeshError(self.name, kind, rank, cause, host, last_lines, remedy=self.remedy())
        self.is_told = False
        self._abort(f"rank {rank} {kind}: {cause}", epoch)
        self._io.wake_waiters()
