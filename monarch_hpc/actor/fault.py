"""Failures that no call reports, and what becomes of those that nobody handles."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

__all__ = ["MeshFailure", "end_program", "leaving_on_faults", "tell_program"]

_SIGNAL = signal.SIGURG
"""Wakes the main thread, whatever it waits in. Ignored by default, and used by no library that we know of."""


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


def end_program(failure: MeshFailure) -> None:
    """Print the failure and end the program with exit code 1: its main thread raises `SystemExit`.

    This is what `monarch_hpc.actor.unhandled_fault_hook` does unless another function is assigned to it.
    """
    advice = "handle it in the owner's __supervise__, or assign monarch_hpc.actor.unhandled_fault_hook"
    print(f"monarch-hpc: nobody handled a failure ({advice}): {failure.report()}", file=sys.stderr, flush=True)
    main = threading.main_thread()
    if signal.getsignal(_SIGNAL) is _leave and main.ident is not None:
        signal.pthread_kill(main.ident, _SIGNAL)
    else:
        _thread.interrupt_main()


def tell_program(failure: MeshFailure) -> None:
    """Call `monarch_hpc.actor.unhandled_fault_hook`, on a thread where it may call actors and wait."""
    threading.Thread(target=_call_hook, args=(failure,), name="monarch-fault", daemon=True).start()


def _call_hook(failure: MeshFailure) -> None:
    from monarch_hpc import actor  # it imports this module, and users assign to it

    try:
        actor.unhandled_fault_hook(failure)
    except BaseException:  # noqa: BLE001 user code; what it did not handle is still to be handled
        traceback.print_exc()
        end_program(failure)


@contextlib.contextmanager
def leaving_on_faults() -> Iterator[None]:
    """Let `end_program` end this process while the context is open; entered in the main thread, or without effect."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        yield
        return
    signal.signal(_SIGNAL, _leave)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(_SIGNAL, signal.SIG_DFL)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)
