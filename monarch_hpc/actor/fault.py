"""Failures that no call reports, and what becomes of those that nobody handles."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from monarch_hpc.core.description import trace_of

__all__ = ["MeshFailure", "end_program", "exit_on_faults", "print_error", "run_fault_hook"]

_SIGNAL = signal.SIGURG
"""Wakes the main thread, whatever it waits in. Ignored by default, and used by no library that we know of."""


_REACT_S = 10.0
"""How long the main thread may take to hear that the program ends.

It hears within milliseconds, also while it sleeps or waits for a lock of Python's, unless it is in C code that no
signal interrupts. Longer than a loaded machine needs, and than most calls into C take.
"""

_POLL_S = 0.1
"""How often to see whether it has reacted: a moment beside the time that it has."""

_ABANDON_S = 20.0
"""How long procs may take to end after that: longer than the agents of an embedded allocation need."""


@dataclass(frozen=True, slots=True)
class MeshFailure:
    """One actor of a mesh is dead.

    Attributes:
        mesh_name: the name given to `spawn`.
        rank: of the actor in that mesh.
        where: actor, rank and host, in words.
        cause: what it raised, or how its proc ended, in words.
        trace: the formatted traceback; empty where there is none.
    """

    mesh_name: str
    rank: int
    where: str
    cause: str
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.where} died: {self.cause}"

    def report(self) -> str:
        """All that is known of the failure, in several lines."""
        return f"{self}\n{self.trace}".rstrip()


def print_error(text: str) -> None:
    """Print to stderr, if it takes it: users may have replaced it, or closed it."""
    with contextlib.suppress(BaseException):
        print(text, file=sys.stderr, flush=True)


def end_program(failure: MeshFailure) -> None:
    """Print the failure and end the program with exit code 1: its main thread raises `SystemExit`.

    If that thread is in C code that no signal interrupts, the program ends 10 s later all the same, without its own
    clean-up; its procs are ended.

    This is what `monarch_hpc.actor.unhandled_fault_hook` does unless another function is assigned to it.
    """
    advice = "handle it in the owner's __supervise__, or assign monarch_hpc.actor.unhandled_fault_hook"
    print_error(f"monarch-hpc: nobody handled a failure ({advice}): {failure.report()}")
    main = threading.main_thread()
    if _leaving.armed and main.ident is not None:
        signal.pthread_kill(main.ident, _SIGNAL)
    elif main.ident is not None and callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(main.ident, signal.SIGINT)  # wakes it, which `interrupt_main` does not
    else:
        _thread.interrupt_main()
    threading.Thread(target=_force_exit, args=(_place(main),), name="monarch-end", daemon=True).start()


def run_fault_hook(failure: MeshFailure) -> None:
    """Call `monarch_hpc.actor.unhandled_fault_hook`, on a thread where it may call actors and wait."""
    threading.Thread(target=_call_hook, args=(failure,), name="monarch-fault", daemon=True).start()


def _call_hook(failure: MeshFailure) -> None:
    from monarch_hpc import actor  # it imports this module, and users assign to it

    try:
        actor.unhandled_fault_hook(failure)
    except BaseException as error:  # noqa: BLE001 user code; what it did not handle is still to be handled
        print_error(trace_of(error))
        end_program(failure)


class _Leaving:
    """How this process ends when nobody handles a failure.

    Attributes:
        armed: the main thread hears our signal.
        reacted: it did.
        abandon: ends what the program has started, without its main thread.
    """

    def __init__(self) -> None:
        self.armed = False
        self.reacted = False
        self.abandon: Callable[[], None] | None = None

    def leave(self, _signal: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.reacted = True
        raise SystemExit(1)


_leaving = _Leaving()


@contextlib.contextmanager
def exit_on_faults(abandon: Callable[[], None]) -> Iterator[None]:
    """Let `end_program` end this process while the context is open; by its main thread, if set_context there.

    Args:
        abandon: ends what the program has started, where its main thread hangs; on any thread.
    """
    _leaving.abandon = abandon
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
        signal.signal(_SIGNAL, _leaving.leave)
        _leaving.armed, _leaving.reacted = True, False
    try:
        yield
    finally:
        if _leaving.armed and threading.current_thread() is threading.main_thread():
            signal.signal(_SIGNAL, signal.SIG_DFL)
            _leaving.armed = False
        _leaving.abandon = None


def _place(main: threading.Thread) -> tuple[FrameType | None, int]:
    """Where the main thread is: which call of which function."""
    frame = sys._current_frames().get(main.ident or 0)
    return frame, -1 if frame is None else frame.f_lasti


def _force_exit(at: tuple[FrameType | None, int]) -> None:
    """End the process if the main thread does not hear that it ends."""
    abandon = _leaving.abandon
    main = threading.main_thread()
    for _ in range(max(round(_REACT_S / _POLL_S), 1)):  # not by the clock: a program may be stopped, and go on
        if _leaving.reacted or not main.is_alive() or _leaving.abandon is None:
            return  # what it cleans up may take as long as it likes
        time.sleep(_POLL_S)
    frame, _ = now = _place(main)
    if not _leaving.armed and now != at:
        return  # it runs Python code, and has reacted
    where = "".join(traceback.format_stack(frame)) if frame is not None else ""
    print(
        f"monarch-hpc: the main thread has not reacted of that in {_REACT_S:g} s: no signal interrupts what it is in. "
        f"The program ends here, without its own clean-up.\n{where}",
        file=sys.stderr,
        flush=True,
    )
    if abandon is not None:
        ending = threading.Thread(target=abandon, name="monarch-abandon", daemon=True)
        ending.start()
        ending.join(_ABANDON_S)
    os._exit(1)
