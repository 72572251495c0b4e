"""The versions of a mesh's state as the program knows them, and what is done before it learns that a rank is gone."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from threading import RLock
from typing import Any
from weakref import WeakSet

import torch

from monarch_hpc.core.errors import ActorDied, CallTimeout, DeviceMeshError, MonarchError
from monarch_hpc.core.text.description import text_of
from monarch_hpc.tensor.healing.decision import Position, TornError, decide, obstacle_to_repeating
from monarch_hpc.tensor.healing.ranks import RankLost, Ranks
from monarch_hpc.tensor.healing.sources import KeptParts
from monarch_hpc.tensor.healing.training import OptimizerSnapshot, follow_optimizers
from monarch_hpc.tensor.stream.engine import TensorEngine, View
from monarch_hpc.tensor.stream.holdings import RankStatus
from monarch_hpc.tensor.stream.issue_log import IssueLog, LoggedFrame
from monarch_hpc.tensor.stream.records import COMMIT
from monarch_hpc.tensor.stream.sites import line_of
from monarch_hpc.tensor.stream.step_frame import begin_step, end_step

__all__ = ["Recovery"]

_HEALED = ("died", "diverged", "stuck")


class Recovery:
    """Commits of one engine, and the decision after a failure which of them count.

    Args:
        engine: the engine, all of whose ranks take part.
        ranks: its ranks.

    Attributes:
        known: the newest version that a rank is known to have.
        mark: number of the first value that is younger than the decided version.
        last_mark: likewise of the last commit that was issued.
        obstacle: why repeating the last batch would not be exact; empty if it would be.
        num_changes: number of changes that the program may not repeat, in all.
        lost_leaves: leaves whose gradients were computed before the decided version, and not dropped since.
        is_begun: whether an attempt to heal was begun, so that another one takes a decision of its own, and an epoch.
        num_heals: number of heals.
        begun_s: when the heals of the last hour began.
        sources: parts of tensors that the program has distributed.
        log: what was issued since the last commit; None if nothing is issued again.
        goes_on: whether the decision is to issue again what was lost, so that the program need not go back.
        unloaded: by rank, numbers of values that are to be loaded from a checkpoint, and have no contents until then.
    """

    def __init__(self, engine: TensorEngine, ranks: Ranks) -> None:
        self._engine = engine
        self.ranks = ranks
        self.known = 0
        self.mark = 0
        self.obstacle = ""
        self.lost_leaves: list[int] = []
        self.num_heals = 0
        self.begun_s: deque[float] = deque()
        self.sources = KeptParts(engine.config.kept_bytes)
        self.unloaded: dict[int, set[int]] = {}
        self.log: IssueLog | None = None
        self.goes_on = False
        self._issued = 0
        self._seen = (0, 0)
        self._under_way: deque[tuple[int, int]] = deque()  # commits: the number of the next operation, the version
        self._steps = {0: 0}
        self._backwards: dict[int, int] = {}
        self._changes: dict[int, int] = {}
        self.num_changes = 0
        self._in_step = False
        self.last_mark = 0
        self._snapshots: deque[tuple[int, OptimizerSnapshot]] = deque()
        self._committed_at = 0
        self._num_harmless = 0
        self._graded: WeakSet[Any] = WeakSet()
        self._fresh: set[Any] = set()
        self._decided = False
        self.is_begun = False
        self._deciding = RLock()
        follow_optimizers(_with_optimizer, _before_step, _after_step)

    # ---- versions ----

    @property
    def is_preparing(self) -> bool:
        """Whether no gradients were computed yet."""
        return not self._graded

    def before_step(self, view: View, optimizer: torch.optim.Optimizer) -> None:
        """Note the state of an optimizer before its step, whose operations are to be one unit."""
        begin_step(self._engine, view)
        self._forget()
        self._in_step = True
        self._snapshots.append((self._issued, OptimizerSnapshot(optimizer)))

    def _forget(self) -> None:
        """Forget what only a way back to versions before `known` would need, if the program reads nothing, too."""
        while self._snapshots and self._snapshots[0][0] < self.known:
            self._snapshots.popleft()
        for counts in (self._backwards, self._changes, self._steps):
            for old in [at for at in counts if at < self.known and at != self._seen[0]]:
                del counts[old]

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps in the newest version that is known to be done."""
        return self._steps[self.known]

    def commit(self, view: View, num_steps: int) -> None:
        """Issue a commit of all that was issued before, with *num_steps* more steps than the last one."""
        engine = self._engine
        with engine.lock:
            engine.use(view)
            engine.free_dead(view)
            self.last_mark, self._in_step = engine.next_value, False
            if not end_step(engine, self._issued + 1):
                engine.emit(view, [COMMIT, self._issued + 1, self.last_mark], depth=3)
            self._note_commit(num_steps)

    def _note_commit(self, num_steps: int) -> None:
        """Note that a commit was issued."""
        self._issued += 1
        self._steps[self._issued] = self._steps[self._issued - 1] + num_steps
        self._committed_at, self._num_harmless = self._engine.num_issued, 0
        self._under_way.append((self._committed_at, self._issued))
        self._fresh.clear()
        if self.log is not None:
            graded = (leaf.number for leaf in self._graded if leaf.has_grad)
            self.log.note_commit(self._issued, self._committed_at, graded)

    def covers(self, view: View) -> bool:
        """Whether steps on the ranks of a view are versions."""
        return view.mesh > 0 and len(view.ranks) == self._engine.num_ranks

    def note_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Note the states of optimizers before a captured step in which each makes a version."""
        self._forget()
        self._snapshots += [(self._issued + at, OptimizerSnapshot(one)) for at, one in enumerate(optimizers)]

    def note_replay(self, steps: Sequence[list[Any] | torch.optim.Optimizer], num_changes: int) -> None:
        """Note what a captured step has done that was replayed; the caller holds the lock."""
        for step in steps:
            if isinstance(step, list):
                self.note_backward(step)
            else:
                self.last_mark = self._engine.next_value
                self._note_commit(num_steps=1)
        for _ in range(num_changes):
            self.note_change()

    def note_done(self, seq: int) -> None:
        """Note that all ranks have executed what was issued before operation *seq*; on the driver."""
        if self.log is not None:
            self.log.note_done(seq)
        while self._under_way and self._under_way[0][0] <= seq:
            self.known = max(self.known, self._under_way.popleft()[1])

    def note_backward(self, leaves: list[Any]) -> None:
        """Note that a backward pass adds to the gradients of *leaves*."""
        self._backwards[self._issued] = self._backwards.get(self._issued, 0) + 1
        for leaf in leaves:
            if not leaf.has_grad:
                self._fresh.add(leaf)
                self._graded.add(leaf)

    def note_change(self) -> None:
        """Note a change of what is older than the last commit, which the program may not repeat with its batch."""
        if not self._in_step:
            self.num_changes += 1
            self._changes[self._issued] = self._changes.get(self._issued, 0) + 1

    def note_harmless(self) -> None:
        """Note an operation that changes nothing which outlives it."""
        self._num_harmless += 1

    @property
    def expected(self) -> int:
        """The version that the next value read must have."""
        return self._issued

    @property
    def only_read(self) -> bool:
        """Whether nothing was issued since the last commit that changes anything."""
        return self._engine.num_issued - self._committed_at == self._num_harmless

    def release(self, version: int, effects: int) -> None:
        """Note that the program gets a value, of a rank at *version* with so many changes since."""
        self.known = max(self.known, version)
        self._seen = version, effects
        for counts in (self._backwards, self._changes, self._steps):
            for old in [at for at in counts if at < version]:
                del counts[old]

    def release_all(self) -> None:
        """Note that the program knows all that it has issued to be done."""
        self.release(self._issued, self._backwards.get(self._issued, 0))

    # ---- failures ----

    def settle(self) -> None:
        """Stop the ranks that live, and decide at which version they go on, once; on a thread that may wait.

        After it, `TensorEngine.broken` says what has happened, as a fact.
        """
        with self._engine.lock, self._deciding:
            if self._decided or self._engine.broken is None:
                return
            self._decided = True
            try:
                self.decide()
            except MonarchError as error:
                self._give_up("torn", text_of(error), error)

    def decide(self) -> None:
        """Fence all ranks that live, and bring them to one version; again if one dies meanwhile."""
        for _ in self.ranks.world:
            with contextlib.suppress(RankLost):
                self._decide_once()
                return
        self._give_up("died", "ranks died one after the other")

    def _decide_once(self) -> None:
        broken: Any = self._engine.broken
        statuses = self.ranks.fence(f"{broken.kind}: {broken.cause}", stacks=broken.kind == "diverged")
        self.known = max(self.known, *(status.version for status in statuses.values()), 0)
        if not statuses:
            self._give_up("lost", "no rank is left")
            return
        try:
            version = decide(statuses, self.known)
        except TornError as error:
            self._give_up("torn", str(error), error)
            return
        why = "" if self.log is None else self.log.obstacle(version, self._engine.unsent)
        self.goes_on = self.log is not None and not why and broken.kind in _HEALED
        marks = self.ranks.ask(statuses, "roll", version, again=self.goes_on)
        self.mark = max(marks.values())
        if self.goes_on:
            assert self.log is not None
            self.known, self.lost_leaves = version, self.log.graded_at(version)
            self._describe(broken, statuses, version)
            return
        self._take_back(version)
        self._describe(broken, statuses, version, f"; it is not healed by itself, because {why}" if why else "")

    def _take_back(self, version: int) -> None:
        """Note that the program goes back to *version*, and bring what it keeps there."""
        if self._seen[0] < version and self._steps.get(self._seen[0]) == self._steps[version]:
            self._seen = version, 0  # no step in between, which a program would read the loss of
        self.obstacle = self.obstacle or obstacle_to_repeating(  # of the first decision: it has taken the program back
            Position(self._issued, *self._seen, self._backwards, self._changes), version
        )
        self._go_back(version)

    def go_back(self) -> None:
        """Have the program go back after all: what was lost cannot be issued again."""
        self.goes_on = False
        self._take_back(self.known)

    def to_issue_again(self) -> list[LoggedFrame] | None:
        """What the ranks have to execute again; None if the program goes back."""
        return self.log.since(self.known) if self.goes_on and self.log is not None else None

    def _go_back(self, version: int) -> None:
        """Bring what the program keeps to *version*."""
        while self._snapshots and self._snapshots[-1][0] >= version:
            self._snapshots.pop()[1].restore()
        for leaf in self._graded:
            leaf.grad = None
            if leaf in self._fresh:
                leaf.has_grad = False
        self._fresh.clear()
        self.lost_leaves = [leaf.number for leaf in self._graded if leaf.has_grad]
        self._issued = version
        self._under_way.clear()
        self._backwards, self._changes, self._in_step = {}, {}, False
        self._seen = min(self._seen, (version, 0))

    def _describe(self, broken: Any, statuses: dict[int, RankStatus], version: int, note: str = "") -> None:
        """Replace the error by one that states what has happened."""
        engine, kind, rank, cause = self._engine, broken.kind, broken.rank, broken.cause
        host, lines, origin = broken.host, broken.last_lines, broken.__cause__
        stacks = {place: one.stack for place, one in self.ranks.places.items() if one.stack}
        for dead, error in sorted(self.ranks.gone.items()):
            if kind == "diverged" and isinstance(error, CallTimeout) and dead in stacks:
                site = engine.site_of(self.ranks.places[dead].seq)
                where = f" of {line_of(site)}" if site else ""
                kind, rank, cause = "stuck", dead, f"it does not come out of an operation{where}, which others left"
                origin = error
            elif kind not in ("died", "stuck"):
                kind, rank, cause, origin = "died", dead, str(getattr(error, "cause", "") or text_of(error)), error
                if isinstance(error, ActorDied):
                    host, lines = error.host, error.last_lines
        for stopped, status in sorted(statuses.items()):
            if kind == "diverged" and rank < 0:
                rank, cause = stopped, status.cause
        shown = stacks if kind == "stuck" else {}
        engine.broken = DeviceMeshError(engine.name, kind, rank, cause + note, host, lines, version, shown)
        engine.broken.__cause__ = origin

    def _give_up(self, kind: str, cause: str, origin: BaseException | None = None) -> None:
        engine = self._engine
        engine.broken = DeviceMeshError(engine.name, kind, -1, cause)
        engine.broken.__cause__ = origin

    def reread(self, number: int, expected: int, *, only_read: bool) -> Any:
        """The value of a tensor of a step that is done after all, from a rank that is left; None if there is none.

        Args:
            number: of the value.
            expected: the version that it was to be read at.
            only_read: whether nothing was issued after that version.
        """
        self.settle()
        version = getattr(self._engine.broken, "version", -1)
        if version != expected or self._seen[0] > version or not only_read:
            return None
        for rank in self.ranks.left:
            with contextlib.suppress(RankLost):
                found = self.ranks.ask([rank], "peek", number)[rank]
                if found is not None:
                    self.release(version, 0)
                    self.obstacle = ""
                    return found
        return None

    def mended(self) -> None:
        """Go on: the ranks are whole again."""
        self._decided = self.is_begun = False
        self.num_heals += 1
        if self.goes_on:
            self.goes_on = False
            return
        self._seen = self._issued, 0
        self.known = self._issued
        self._committed_at, self._num_harmless = self._engine.num_issued, 0
        self.obstacle = ""
        if self.log is not None:
            self.log.restart(self._issued, self._committed_at, self.lost_leaves)


def _recovery_of(view: View) -> Recovery | None:
    recovery = view.engine.recovery
    return recovery if isinstance(recovery, Recovery) and recovery.covers(view) else None


def _with_optimizer(view: View) -> None:
    """Make a version: what was done to prepare a training must not be lost with its first step."""
    recovery = _recovery_of(view)
    if recovery is not None:
        recovery.commit(view, num_steps=0)


def _before_step(view: View, optimizer: Any) -> None:
    recovery = _recovery_of(view)
    if recovery is not None:
        recovery.before_step(view, optimizer)


def _after_step(view: View) -> None:
    recovery = _recovery_of(view)
    if recovery is not None:
        recovery.commit(view, num_steps=1)
