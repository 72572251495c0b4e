"""Finds the worker of an engine in its proc: for its control actor, and for tensors that arrive at other actors."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Any, Protocol

from monarch_hpc.tensor.stream.holdings import WorkerPlace
from monarch_hpc.tensor.worker.divergence import FailedFrame

__all__ = [
    "WorkerState",
    "add_worker",
    "end_worker",
    "forget_worker",
    "note_failed",
    "place_of",
    "reopen_worker",
    "tell_stopped",
    "wait_for_worker",
    "when_stopped",
]


class WorkerState(Protocol):
    """The part of a worker that other threads of its proc use."""

    def abort(self, cause: str, epoch: int) -> None:
        """End the collectives of an epoch, if there is no later one; from any thread."""
        ...

    def note_failed(self, frame: FailedFrame) -> None:
        """Compare what failed on another rank with what failed here; from any thread."""
        ...

    def place(self) -> WorkerPlace:
        """What it is doing; from any thread."""
        ...

    def borrowed(self, token: int) -> object:
        """Wait for a lent copy, and take it; from any thread."""
        ...

    def loaned(self, token: int) -> Any:
        """Wait for what is handed to another stream, and take it; from any thread."""
        ...


_states: dict[int, WorkerState] = {}
_ended: dict[int, str] = {}
"""Why there will be no worker, by the key of its engine."""

_changed = Condition()

_told: dict[int, list[Callable[[tuple[int, str]], None]]] = {}
"""Functions that are told when a worker stops by itself, by the key of its engine."""


def add_worker(key: int, state: WorkerState) -> None:
    """Make a worker known under the key of its engine."""
    with _changed:
        _states[key] = state
        _changed.notify_all()


def end_worker(key: int, cause: str, epoch: int) -> None:
    """Wait no longer for a worker which may not be there yet, and end the collectives of one that is."""
    with _changed:
        _ended[key] = cause
        _changed.notify_all()
        state = _states.get(key)
    if state is not None:
        state.abort(cause, epoch)


def note_failed(key: int, frame: FailedFrame) -> None:
    """Have a worker compare what failed on another rank with what failed here."""
    with _changed:
        state = _states.get(key)
    if state is not None:
        state.note_failed(frame)


def when_stopped(key: int, tell: Callable[[tuple[int, str]], None]) -> None:
    """Have *tell* called once, with the epoch and the cause, when the worker of an engine stops by itself."""
    with _changed:
        _told.setdefault(key, []).append(tell)


def tell_stopped(key: int, epoch: int, cause: str) -> None:
    """Tell who has asked that the worker of an engine executes nothing more."""
    with _changed:
        told = _told.pop(key, [])
    for tell in told:
        tell((epoch, cause))


def place_of(key: int) -> WorkerPlace:
    """What the worker of an engine is doing."""
    with _changed:
        state = _states.get(key)
    return WorkerPlace(-1, "") if state is None else state.place()


def reopen_worker(key: int) -> None:
    """Wait for the worker of an engine again, whose mesh is healed."""
    with _changed:
        _ended.pop(key, None)


def forget_worker(key: int) -> None:
    """Forget a worker that ends."""
    with _changed:
        _states.pop(key, None)
        _told.pop(key, None)
        _ended.setdefault(key, "its procs are stopped")
        _changed.notify_all()


def wait_for_worker(key: int, timeout_s: float, awaited: str) -> WorkerState:
    """The worker of an engine in this proc, which has been spawned; waits for its constructor.

    Args:
        key: identifies the engine.
        timeout_s: longest wait: the key comes from a message, and may be that of an engine that never was.
        awaited: what the caller waits for, in words.

    Raises:
        RuntimeError: the mesh ended before, or there is no such worker after this time.
    """
    with _changed:
        _changed.wait_for(lambda: key in _states or key in _ended, timeout_s)
        state = _states.get(key)
        if state is not None:
            return state
        if key in _ended:
            raise RuntimeError(f"the mesh of this tensor has ended: {_ended[key]}")
        raise RuntimeError(f"{awaited} (number {key:#x}) did not start in this process within {timeout_s:g} s")
