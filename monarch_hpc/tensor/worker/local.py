"""Finds the worker of an engine in its proc: for its control actor, and for tensors that arrive at other actors."""

from __future__ import annotations

from typing import Protocol

__all__ = ["WorkerState", "add_worker", "forget_worker", "worker_state"]


class WorkerState(Protocol):
    """The part of a worker that other threads of its proc use."""

    def abort(self, cause: str) -> None:
        """End the collectives under way, and all to come; from any thread."""
        ...

    def borrowed(self, token: int) -> object:
        """Wait for a lent copy, and take it; from any thread."""
        ...


_states: dict[int, WorkerState] = {}


def add_worker(key: int, state: WorkerState) -> None:
    """Make a worker known under the key of its engine."""
    _states[key] = state


def forget_worker(key: int) -> None:
    """Forget a worker that ends."""
    _states.pop(key, None)


def worker_state(key: int) -> WorkerState | None:
    """The worker of an engine in this proc; None if there is none."""
    return _states.get(key)
