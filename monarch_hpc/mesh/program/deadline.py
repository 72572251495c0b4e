"""A program's deadline: the time left to the allocations that it uses, and the hooks that run when one ends soon."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from monarch_hpc.config.program import LOOP_VARIABLE, own_variables
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.control.deadline import SIGTERM, TIME_LIMIT, AwaitDeadline, DeadlineMet, DeadlineNear, JobEnd

__all__ = ["DeadlineHook", "ProgramDeadline"]

DeadlineHook = Callable[[float, str], object]
"""Called with the seconds left and the cause."""

_ANSWER_S = 10.0
"""Time that a head may take to learn from Slurm when its job ends; a busy slurmctld answers in up to 9 s."""

_ALONE_S = 2.0
"""Time in which notice of the end follows a SIGTERM that Slurm has sent; a program that gets none was meant alone."""

_LOOK_S = 0.1

_JOB = "SLURM_JOB_ID"

_log = Logger(__name__)


class ProgramDeadline:
    """The ends of all allocations of the program, by the program's clock.

    Args:
        tenancies: returns the allocations in use.
    """

    def __init__(self, engine: Engine, tenancies: Callable[[], Iterable[Tenancy]]) -> None:
        self._engine = engine
        self._tenancies = tenancies
        self._lock = threading.Lock()
        self._hooks: list[DeadlineHook] = []
        self._known: dict[str, tuple[Flag, float | None]] = {}
        self._near: dict[str, tuple[float, str]] = {}
        self._num_running = 0
        self._ending = False
        self._requeued = False

    # ---- for any thread ----

    def add(self, hook: DeadlineHook) -> None:
        """Have *hook* called when an allocation ends soon; at once, on another thread, if one does already."""
        self._survive_sigterm()
        with self._lock:
            first = not self._hooks
            self._hooks.append(hook)
            near = {allocation: end for allocation, end in self._near.items() if end[0] > time.monotonic()}
        if first:
            for tenancy in self._tenancies():
                self.on_open(tenancy)
        else:
            for end_s, cause in near.values():
                self._start([hook], end_s, cause, lambda: None)

    def seconds_left(self) -> float | None:
        """The time until Slurm ends the first of the allocations; None if none has a known end."""
        deadline_s = time.monotonic() + _ANSWER_S
        ends: list[float] = []
        for tenancy in self._tenancies():
            flag, _ = self._entry(tenancy.allocation)
            flag.wait(max(deadline_s - time.monotonic(), 0.0))
            _, end_s = self._entry(tenancy.allocation)
            if end_s is not None:
                ends.append(end_s)
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def on_open(self, tenancy: Tenancy) -> None:
        """Ask the head of an allocation for notice of its end, if the program has hooks."""
        if self._hooks:
            with contextlib.suppress(TransportError):  # it is gone: its end comes without notice
                tenancy.send(AwaitDeadline())

    # ---- on the driver ----

    def on_message(self, tenancy: Tenancy, message: JobEnd | DeadlineNear) -> None:
        """Handle a message of the head of an allocation."""
        match message:
            case JobEnd():
                flag, _ = self._entry(tenancy.allocation)
                end_s = time.monotonic() + message.left_s if message.left_s >= 0 else None
                with self._lock:
                    self._known[tenancy.allocation] = flag, end_s
                flag.set()
            case DeadlineNear():
                end_s = time.monotonic() + message.left_s
                with self._lock:
                    self._near[tenancy.allocation] = end_s, message.cause
                    hooks = list(self._hooks)

                def handled() -> None:
                    with contextlib.suppress(TransportError):
                        tenancy.send(DeadlineMet())

                again = message.cause == TIME_LIMIT and _loops(tenancy)
                self._start(hooks, end_s, message.cause, handled, again=again)

    def _entry(self, allocation: str) -> tuple[Flag, float | None]:
        with self._lock:
            return self._known.setdefault(allocation, (Flag(self._engine), None))

    def _start(
        self, hooks: list[DeadlineHook], end_s: float, cause: str, handled: Callable[[], None], *, again: bool = False
    ) -> None:
        if self._requeued or not (hooks or again):
            handled()
            return
        with self._lock:
            self._num_running += 1

        def work() -> None:
            for hook in hooks:
                try:
                    hook(max(end_s - time.monotonic(), 0.0), cause)
                except Exception:  # noqa: BLE001 a callback's edge: the others must run
                    _log.exception("a hook of on_deadline failed")
            if again:
                from monarch_hpc.slurm.requeue import requeue  # other programs need no Slurm

                self._requeued = True  # first: Slurm ends the job before the command returns
                try:
                    requeue()
                except Exception as error:  # noqa: BLE001 a thread's edge: the job ends at its time limit
                    self._requeued = False
                    _log.warning("the job does not start again: %s", error)
            handled()
            with self._lock:
                self._num_running -= 1

        threading.Thread(target=work, name="monarch-deadline", daemon=True).start()

    # ---- SIGTERM to the program ----

    def _survive_sigterm(self) -> None:
        """In a job, let SIGTERM not end the program before its hooks: Slurm may send it to all processes of a job.

        Python can change the action of a signal only on the main thread.
        """
        main = threading.current_thread() is threading.main_thread()
        if main and own_variables([_JOB]) and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, _frame: object) -> None:
        if self._ending:
            signal.signal(number, lambda _number, _frame: None)  # another one must not break the end off
            raise SystemExit(128 + number)
        threading.Thread(target=self._end_after_hooks, name="monarch-sigterm", daemon=True).start()

    def _end_after_hooks(self) -> None:
        """End the program as SIGTERM wants it: when its agents have ended, or soon if they got no SIGTERM."""
        alone_s = time.monotonic() + _ALONE_S
        while list(self._tenancies()):
            noticed = any(cause == SIGTERM for _, cause in list(self._near.values()))
            if time.monotonic() > alone_s and not noticed and not self._num_running:
                break
            time.sleep(_LOOK_S)
        self._ending = True
        os.kill(os.getpid(), signal.SIGTERM)  # to its handler, on the main thread


def _loops(tenancy: Tenancy) -> bool:
    """Tell whether the program starts again when the time of this allocation, its own job, is over."""
    own = own_variables([_JOB, LOOP_VARIABLE])
    return own.get(LOOP_VARIABLE, "0") != "0" and own.get(_JOB) == str(tenancy.ready.job_id)
