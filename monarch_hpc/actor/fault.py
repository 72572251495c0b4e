"""Actor failures that no call reports, and the end of the program if such a failure is not handled."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from functools import partial
from threading import main_thread
from time import sleep
from types import FrameType

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import EXIT_CODES, DeathKind
from monarch_hpc.core.process.native_threads import thread_frames
from monarch_hpc.core.process.thread import Thread, in_main_thread
from monarch_hpc.core.text.description import trace_of

__all__ = ["MeshFailure", "end_program", "end_taken_over", "exit_on_faults", "print_error", "run_fault_hook"]

_SIGNAL = signal.SIGURG
"""Interrupts the main thread in any wait. Ignored by default, and not known to be used by any library."""


_REACT_S = 10.0
"""Time that the main thread may take to react to the signal that ends the program.

It reacts within milliseconds, also while it sleeps or waits for a Python lock, unless it is in C code that no signal
interrupts. The limit is longer than a loaded machine needs, and longer than most calls into C take.
"""

_POLL_S = 0.1
"""Poll interval while waiting for the main thread to react."""

_ABANDON_S = 20.0
"""Time that procs may take to end after that: longer than the agents of an embedded allocation take."""


@dataclass(frozen=True, slots=True)
class MeshFailure:
    """The death of one actor of a mesh.

    Attributes:
        mesh_name: the name given to `spawn`.
        rank: rank of the actor in that mesh.
        where: actor, rank and host, in words.
        cause: the exception that it raised, or the end of its proc, in words.
        trace: the formatted traceback; empty if there is none.
        class_name: module and name of the actor's class; empty if the owner does not know it.
        kind: what kind of end it was.
    """

    mesh_name: str
    rank: int
    where: str
    cause: str
    trace: str = ""
    class_name: str = ""
    kind: DeathKind = DeathKind.RAISED

    def __str__(self) -> str:
        return f"{self.where} died: {self.cause}"

    def report(self) -> str:
        """Describe the failure in full, with the actor's class and its traceback."""
        kind = f"it was of class {self.class_name}\n" if self.class_name else ""
        return f"{self}\n{kind}{self.trace}".rstrip()


def print_error(text: str) -> None:
    """Print to stderr; ignore errors, because user code may have replaced or closed it."""
    with contextlib.suppress(BaseException):
        print(text, file=sys.stderr, flush=True)


def end_program(failure: MeshFailure) -> None:
    """Print the failure and end the program: its main thread raises `SystemExit`.

    The exit code is 1; 78 after a node failure, 79 at a time limit or preemption: see `core.death.EXIT_CODES`.

    If that thread is in C code that no signal interrupts, the process exits 10 s later, without the program's clean-up;
    its procs are ended first.

    This is the default of `monarch_hpc.actor.unhandled_fault_hook`.
    """
    advice = "handle it in the owner's __supervise__, or assign monarch_hpc.actor.unhandled_fault_hook"
    print_error(f"monarch-hpc: unhandled failure ({advice}): {failure.report()}")
    _end(EXIT_CODES.get(failure.kind, 1))


def end_taken_over(why: str) -> None:
    """Print *why* this program does not rule its run any more, and end it with code 77, otherwise as `end_program`."""
    print_error(f"monarch-hpc: {why}; this program ends")
    _end(EXIT_CODES[DeathKind.FENCED])


def _end(code: int) -> None:
    _leaving.code = code
    main = main_thread()
    if _leaving.armed and main.ident is not None:
        signal.pthread_kill(main.ident, _SIGNAL)
    elif main.ident is not None and callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(main.ident, signal.SIGINT)  # interrupts a wait, which `interrupt_main` does not
    else:
        interrupt_main()
    Thread(partial(_force_exit, _position(main.ident or 0)))


def run_fault_hook(failure: MeshFailure) -> None:
    """Call `monarch_hpc.actor.unhandled_fault_hook` on a separate thread, where it may call actors and wait."""
    # Looked up now, because users assign to it; not imported, because that package imports this module.
    hook = getattr(sys.modules["monarch_hpc.actor"], "unhandled_fault_hook", end_program)
    Thread(partial(_call_hook, hook, failure))


def _call_hook(hook: Callable[[MeshFailure], object], failure: MeshFailure) -> None:
    try:
        hook(failure)
    except BaseException as error:  # noqa: BLE001 user code; the failure is still unhandled
        print_error(trace_of(error))
        end_program(failure)


class _Leaving:
    """State of the end of this process after an unhandled failure.

    Attributes:
        armed: whether the handler of our signal is installed.
        reacted: whether that handler has run.
        code: the process's exit code.
        abandon: ends the program's procs without its main thread; None outside `exit_on_faults`.
    """

    def __init__(self) -> None:
        self.armed = False
        self.reacted = False
        self.code = 1
        self.abandon: Callable[[], None] | None = None

    def leave(self, _signal: int, _frame: FrameType | None) -> None:
        """Handle the signal: raise SystemExit in the main thread."""
        self.reacted = True
        raise SystemExit(self.code)


_leaving = _Leaving()


@contextlib.contextmanager
def exit_on_faults(abandon: Callable[[], None]) -> Iterator[None]:
    """Let `end_program` end this process while the context is open; through its main thread, if entered there.

    Args:
        abandon: ends the program's procs if its main thread hangs; called on another thread.
    """
    _leaving.abandon = abandon
    in_main = in_main_thread()
    if in_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
        signal.signal(_SIGNAL, _leaving.leave)
        _leaving.armed, _leaving.reacted = True, False
    try:
        yield
    finally:
        if _leaving.armed and in_main_thread():
            signal.signal(_SIGNAL, signal.SIG_DFL)
            _leaving.armed = False
        _leaving.abandon = None


def _position(main: int) -> tuple[FrameType | None, int]:
    """The position of the main thread, given by its id: frame and instruction."""
    frame = thread_frames().get(main)
    return frame, -1 if frame is None else frame.f_lasti


def _force_exit(at: tuple[FrameType | None, int]) -> None:
    """End the process if the main thread does not react; *at* is its position before the signal."""
    abandon = _leaving.abandon
    main = main_thread()
    # Counted in polls, not by the clock: the program may be stopped and resumed.
    for _ in range(max(round(_REACT_S / _POLL_S), 1)):
        if _leaving.reacted or not main.is_alive() or _leaving.abandon is None:
            return  # clean-up may take any time
        sleep(_POLL_S)
    frame, _ = now = _position(main.ident or 0)
    if not _leaving.armed and now != at:
        return  # it runs Python code, so it has seen the interrupt
    import traceback  # late: a program starts its agent before it needs this

    where = "".join(traceback.format_stack(frame)) if frame is not None else ""
    print(
        f"monarch-hpc: the main thread did not react within {_REACT_S:g} s: it is in C code that no signal interrupts. "
        f"The program ends here, without its own clean-up.\n{where}",
        file=sys.stderr,
        flush=True,
    )
    if abandon is not None:
        Thread(abandon).join(_ABANDON_S)
    os._exit(_leaving.code)
