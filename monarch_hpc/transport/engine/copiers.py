"""The threads of a process that copy memory, step by step."""

from __future__ import annotations

import contextlib
import os
from _thread import RLock, get_ident
from collections import deque
from threading import Condition
from typing import Protocol

from monarch_hpc.core.process.thread import Thread

__all__ = ["Copiers", "Task"]

_MAX_THREADS = 4
"""Upper bound on the threads: four copy as fast as most hosts' memory allows."""

_IDLE_S = 0.5
"""Time after which a thread without work ends: starting one takes a ten-thousandth of it."""


class Task(Protocol):
    """Something to copy, in steps that several threads may do at the same time."""

    def take(self) -> int:
        """The number of a step that no thread has taken yet; -1 if there is none."""
        ...

    def do(self, step: int) -> None:
        """Copy a step that was taken; must not raise."""
        ...


class Copiers:
    """Copies the steps of tasks, those of several tasks in turn; for any thread.

    The first thread starts with the first task, others where the machine has idle cores.
    """

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._changed = Condition(RLock())
        self._threads: dict[int, Thread] = {}
        self._num_idle = 0
        self._closed = False

    def add(self, task: Task, num_steps: int) -> bool:
        """Copy *task*, which has *num_steps*; False if `close` was called."""
        with self._changed:
            if self._closed:
                return False
            self._tasks.append(task)
            self._changed.notify(num_steps)
            wanted = min(num_steps - self._num_idle, _MAX_THREADS - len(self._threads))
            if wanted > 0 and (self._threads or wanted > 1):
                wanted = min(wanted, max(_count_free_cores(), 0 if self._threads else 1))
            for _ in range(wanted):
                thread = Thread(self._run)
                self._threads[thread.ident] = thread
        return True

    def remove(self, task: Task) -> None:
        """Forget *task*: none of its steps is taken any more."""
        with self._changed, contextlib.suppress(ValueError):
            self._tasks.remove(task)

    def _run(self) -> None:
        while True:
            with self._changed:
                found = self._next()
                if found is None:
                    del self._threads[get_ident()]
                    return
            task, step = found
            task.do(step)

    def _next(self) -> tuple[Task, int] | None:
        """A task and its next step; waits for one, but not longer than `_IDLE_S`."""
        while True:
            while self._tasks:
                task = self._tasks[0]
                step = task.take()
                if step >= 0:
                    self._tasks.rotate(-1)
                    return task, step
                self._tasks.popleft()
            if self._closed:
                return None
            self._num_idle += 1
            try:
                if not self._changed.wait(_IDLE_S) and not self._tasks:
                    return None
            finally:
                self._num_idle -= 1

    def close(self) -> None:
        """End the threads, after the steps that are in progress; later tasks are refused."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()


def _count_free_cores() -> int:
    """Number of cores of this process that nothing runs on now, but for the thread that asks."""
    try:
        with open("/proc/loadavg", "rb") as loads:
            num_running = int(loads.read().split()[3].partition(b"/")[0])
    except (OSError, IndexError, ValueError):
        return 0
    return min(len(os.sched_getaffinity(0)), (os.cpu_count() or 1) - num_running + 1)
