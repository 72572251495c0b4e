"""The procs of a fleet that have died, and their way back: waiting, starting, being prepared, alive."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable
from dataclasses import field

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors.summary import LAST_LINES
from monarch_hpc.supervision.policy import Again, Failed, Lives, Restart

__all__ = ["Healing", "Revivals", "Work"]


_UNREPORTED = "the connection to it is lost, and nobody reports its death"


class RevivalStage(enum.Enum):
    """How far a dead proc has come on its way back."""

    DOWN = "it is dead"
    WAITING = "it waits for its restart"
    STARTING = "its process starts"
    PREPARING = "its actors are made again"


@dataclass(frozen=True, slots=True)
class Healing:
    """The outcome of a request to heal.

    Attributes:
        revived: the dead procs that are alive again, as they were before: rank -> why it had died.
        dead: those that are not: rank -> host, why it had died, and why it is not back; empty if it was not tried.
    """

    revived: dict[int, str]
    dead: dict[int, tuple[str, str, str]]


@dataclass(slots=True, eq=False)
class _Dead:
    """A dead proc.

    Attributes:
        proc: as it was.
        restarts: the number of earlier lives of the last one that was ordered, or of its own.
        cause: why it, or the last attempt to bring it back, has ended.
        died: why it had died itself.
        preparing: the proc that is being prepared in its place.
        problem: why that could not be prepared; the proc is asked to end.
        waiting: called once it is alive again, with an empty text, or has failed, with the cause.
        attempt: counts its attempts, so that a late timer is noticed.
    """

    proc: ProcRef
    restarts: int
    cause: str
    died: str
    stage: RevivalStage = RevivalStage.DOWN
    preparing: ProcRef | None = None
    problem: str = ""
    waiting: list[Callable[[str], None]] = field(default_factory=list)
    attempt: int = 0


@dataclass(slots=True, eq=False)
class _Mesh:
    policy: Restart | None
    dead: dict[int, _Dead] = field(default_factory=dict)
    lives: dict[int, Lives] = field(default_factory=dict)
    lost: dict[int, list[Callable[[], None]]] = field(
        default_factory=dict
    )  # rank -> who waits for the report of its death


@dataclass(frozen=True, slots=True)
class Work:
    """What a fleet does for its `Revivals`.

    Attributes:
        clock: the time in seconds.
        later: calls back after a number of seconds.
        start: orders a new proc for a dead one, with a number of earlier lives; raises what sending raises.
        prepare: makes the actors again in a new proc; calls back with why that failed, or with an empty text.
        publish: makes a prepared proc the current one of its rank; calls back when all processes have it.
        end: ends a proc that could not be prepared.
        failed: called with a dead proc and the cause, if an attempt to bring it back was the last one; and whether
            somebody waits for it, and has been told.
        reachable: whether there is a channel to a proc.
    """

    clock: Callable[[], float]
    later: Callable[[float, Callable[[], None]], object]
    start: Callable[[ProcRef, int], None]
    prepare: Callable[[ProcRef, Callable[[str], None]], None]
    publish: Callable[[ProcRef, Callable[[], None]], None]
    end: Callable[[ProcRef], None]
    failed: Callable[[ProcRef, str, bool], None]
    reachable: Callable[[ProcRef], bool]


class Revivals:
    """Decides what becomes of dead procs. Pure but for *work*; all methods must be called on the driver.

    Args:
        start_s: longest wait for the process of a new proc.
        report_s: longest wait for the report of a death, of a proc that cannot be reached.
    """

    def __init__(self, work: Work, start_s: float, report_s: float) -> None:
        self._work = work
        self._start_s = start_s
        self._report_s = report_s
        self._meshes: dict[int, _Mesh] = {}

    def watch(self, mesh: int, policy: Restart | None) -> None:
        """Begin to care for a mesh, whose procs have started."""
        self._meshes[mesh] = _Mesh(policy)

    def forget(self, mesh: int, why: str) -> None:
        """Stop caring for a mesh: it is being stopped."""
        known = self._meshes.pop(mesh, None)
        for dead in known.dead.values() if known is not None else ():
            self._tell(dead, why)
        for waiting in known.lost.values() if known is not None else ():
            for callback in waiting:
                callback()

    # ---- deaths ----

    def on_death(
        self,
        proc: ProcRef,
        cause: str,
        *,
        succeeded: bool = False,
        last_lines: Collection[str] = (),
        final: bool = False,
    ) -> tuple[str, bool]:
        """Handle the death of a proc of a mesh that is not being stopped.

        Args:
            succeeded: whether it has ended by itself with exit code 0.
            last_lines: what it wrote last.
            final: whether its restart policy does not apply: its host is lost, or the program has stopped it.

        Returns:
            The cause, which says more after the last of several restarts; and whether the proc is started again.
        """
        mesh = self._meshes.get(proc.mesh)
        known = None if mesh is None else mesh.dead.get(proc.rank)
        if mesh is None or (known is not None and (proc.restarts < known.restarts or known.stage is RevivalStage.DOWN)):
            return _with_lines(cause, last_lines), False
        attempt = known is not None
        if known is None:
            known = mesh.dead[proc.rank] = _Dead(proc, proc.restarts, cause, cause)
        cause, again = self._decide(mesh, known, known.problem or cause, last_lines, succeeded=succeeded, final=final)
        if not again:
            self._give_up(known, attempt=attempt)
        for callback in mesh.lost.pop(proc.rank, ()):
            callback()
        return cause, again

    def _decide(
        self,
        mesh: _Mesh,
        dead: _Dead,
        cause: str,
        last_lines: Collection[str],
        *,
        succeeded: bool = False,
        final: bool = False,
    ) -> tuple[str, bool]:
        dead.preparing, dead.problem, dead.stage = None, "", RevivalStage.DOWN
        dead.attempt += 1
        decision: Again | Failed = Failed()
        if mesh.policy is not None and not final:
            lives = mesh.lives.setdefault(dead.proc.rank, Lives(mesh.policy))
            decision = lives.on_end(self._work.clock(), succeeded=succeeded, last_lines=list(last_lines))
        if isinstance(decision, Again):
            dead.stage = RevivalStage.WAITING
            attempt = dead.attempt
            self._work.later(decision.delay_s, lambda: self._start(dead, attempt))
        elif decision.reason:
            dead.cause = _with_lines(f"{cause}; {decision.reason}", decision.last_lines)
            return dead.cause, False
        dead.cause = _with_lines(cause, last_lines)
        return dead.cause, dead.stage is RevivalStage.WAITING

    def _give_up(self, dead: _Dead, *, attempt: bool) -> None:
        told = self._tell(dead, dead.cause)
        if attempt:
            self._work.failed(dead.proc, dead.cause, told)

    @staticmethod
    def _tell(dead: _Dead, cause: str) -> bool:
        waiting, dead.waiting = dead.waiting, []
        for callback in waiting:
            callback(cause)
        return bool(waiting)

    def on_host_lost(self, host: int, cause: str, place_of: Callable[[ProcRef], int]) -> None:
        """Handle the loss of a host, on which procs may be starting; *place_of* tells where a dead one comes back."""
        for number, mesh in list(self._meshes.items()):
            for rank, dead in list(mesh.dead.items()):
                if place_of(dead.proc) == host:
                    self.on_failed(number, rank, cause)

    # ---- the way back ----

    def _start(self, dead: _Dead, attempt: int) -> None:
        if dead.attempt != attempt or self._known(dead.proc) is not dead:
            return
        dead.restarts += 1
        dead.stage = RevivalStage.STARTING
        self._work.later(self._start_s, lambda: self._on_late(dead, attempt))
        try:
            self._work.start(dead.proc, dead.restarts)
        except Exception as error:  # noqa: BLE001 raised in whatever waits for it
            self.on_failed(dead.proc.mesh, dead.proc.rank, f"the request could not be sent: {error}")

    def _on_late(self, dead: _Dead, attempt: int) -> None:
        if dead.attempt == attempt and dead.stage is RevivalStage.STARTING and self._known(dead.proc) is dead:
            late = f"its agent did not report within {self._start_s:.0f} s"
            self.on_failed(dead.proc.mesh, dead.proc.rank, late)

    def _known(self, proc: ProcRef) -> _Dead | None:
        mesh = self._meshes.get(proc.mesh)
        return None if mesh is None else mesh.dead.get(proc.rank)

    def expects(self, proc: ProcRef) -> bool:
        """Handle the report that a proc runs; return whether it was ordered here, so that it must be dialled."""
        dead = self._known(proc)
        return dead is not None and dead.stage is RevivalStage.STARTING and proc.restarts == dead.restarts

    def on_failed(self, mesh: int, rank: int, cause: str, last_lines: Collection[str] = ()) -> None:
        """Handle an attempt that has failed before the new proc could be reached."""
        known = self._meshes.get(mesh)
        dead = None if known is None else known.dead.get(rank)
        if known is not None and dead is not None and dead.stage is RevivalStage.STARTING:
            _, again = self._decide(known, dead, cause, last_lines)
            if not again:
                self._give_up(dead, attempt=True)

    def on_reached(self, proc: ProcRef) -> None:
        """Handle an open channel to a new proc."""
        if not self.expects(proc):
            return
        dead = self._known(proc)
        assert dead is not None
        dead.stage, dead.preparing = RevivalStage.PREPARING, proc
        self._work.prepare(proc, lambda problem: self._on_prepared(dead, proc, problem))

    def _on_prepared(self, dead: _Dead, proc: ProcRef, problem: str) -> None:
        if dead.preparing is not proc or self._known(proc) is not dead:
            return  # it has died meanwhile, or the mesh is being stopped
        if problem:
            dead.problem = problem
            self._work.end(proc)  # its death follows
            return
        del self._meshes[proc.mesh].dead[proc.rank]
        self._work.publish(proc, lambda: self._on_published(dead))

    def _on_published(self, dead: _Dead) -> None:
        self._tell(dead, "")

    # ---- requests ----

    def heal(
        self, mesh: int, procs: Iterable[ProcRef], done: Callable[[Healing], None], timeout_s: float, *, respawn: bool
    ) -> None:
        """Bring the dead ones of *procs* back, or only name them; call *done* when that has succeeded or failed.

        Those that a restart policy is bringing back are waited for.

        Args:
            procs: the current procs of *mesh* that may have to be healed.
            timeout_s: seconds after which those that are not back count as dead; they may come back later.
            respawn: whether to start new ones.
        """
        known = self._meshes.get(mesh)
        if known is None:
            done(Healing({}, {}))
            return
        outcome = Healing({}, {})
        left = {proc.rank: proc for proc in procs}

        def end(rank: int, cause: str, died: str) -> None:
            proc = left.pop(rank, None)
            if proc is None:
                return
            if cause:
                began = cause.startswith(died)
                outcome.dead[rank] = proc.host, cause if began else died, "" if began else cause
            elif died:
                outcome.revived[rank] = died
            if not left:
                done(outcome)

        def begin(proc: ProcRef) -> None:
            dead = known.dead.get(proc.rank)
            if dead is None or mesh not in self._meshes:
                end(proc.rank, _UNREPORTED, "")
                return
            if dead.stage is RevivalStage.DOWN and not respawn:
                end(proc.rank, dead.cause, dead.died)
                return
            dead.waiting.append(lambda cause: end(proc.rank, cause, dead.died))
            if dead.stage is RevivalStage.DOWN:
                known.lives.pop(proc.rank, None)  # its policy counts anew
                self._start(dead, dead.attempt)

        def give_up() -> None:
            for rank in list(left):
                dead = known.dead.get(rank)
                if dead is None:
                    end(rank, _UNREPORTED, "")
                else:
                    end(rank, f"it was not back within {timeout_s:g} s: {dead.stage.value}", dead.died)

        for proc in list(left.values()):
            if proc.rank not in known.dead and self._work.reachable(proc):
                del left[proc.rank]
        if not left:
            done(outcome)
            return
        self._work.later(timeout_s, give_up)
        for proc in list(left.values()):
            if proc.rank in known.dead:
                begin(proc)
            else:  # its death is not reported yet
                self._await_report(known, proc, begin)

    def _await_report(self, mesh: _Mesh, proc: ProcRef, then: Callable[[ProcRef], None]) -> None:
        called: list[bool] = []

        def once() -> None:
            if not called:
                called.append(True)
                then(proc)

        mesh.lost.setdefault(proc.rank, []).append(once)
        self._work.later(self._report_s, once)


def _with_lines(cause: str, lines: Collection[str]) -> str:
    """A cause with the lines that the proc wrote last."""
    return cause + LAST_LINES * bool(lines) + "".join(f"\n    {line}" for line in lines)
