"""Lets threads that stand for ranks run one at a time, each with global state of its own.

torch keeps random numbers and its world of process groups per process. A rank that waits for others hands over, and
finds its own state again afterwards.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from threading import Condition, local
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from monarch_hpc.core.process.fork import Owned, watch_forks
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.tensor.worker.collectives import backend
from monarch_hpc.tensor.worker.sharded import calls, communication

__all__ = ["Turns"]

_c10d: Any = dist.distributed_c10d
_stacks: tuple[list[Any], ...] = (calls._current, communication._active, backend.making)


class _RankThread(local):
    number = 0  # of a rank's thread, and never used again, as its id may be; 0 on others


_thread = _RankThread()
_numbers = count(1)


def _tell_meshes_apart() -> None:
    """Have meshes of different ranks differ: torch caches by mesh what depends on the rank."""
    original: Any = DeviceMesh.__init__
    if getattr(original, "tells_apart", False):
        return

    @functools.wraps(original)
    def begin(mesh: Any, *args: Any, **kwargs: Any) -> None:
        original(mesh, *args, **kwargs)
        if _thread.number:
            mesh._thread_id = -_thread.number
            mesh.__dict__.pop("_hash", None)

    begin.tells_apart = True  # type: ignore[attr-defined]
    DeviceMesh.__init__ = begin  # type: ignore[assignment,method-assign]


class _GroupsOfRank:
    """The process groups that torch knows on one rank; with the attributes of torch's own such object."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.group_count = 0
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, Any] = {}
        self.pg_config_info: list[dict[str, Any]] = []


class _State:
    """What a thread finds when its turn comes."""

    def __init__(self, random: torch.Tensor, groups: Any) -> None:
        self.random = random
        self.groups = groups
        self.stacks: list[list[Any]] = [[] for _ in _stacks]

    @classmethod
    def taken(cls) -> _State:
        made = cls(torch.get_rng_state(), _c10d._world)
        made.stacks = [list(stack) for stack in _stacks]
        return made

    def put(self) -> None:
        torch.set_rng_state(self.random)
        _c10d._world = self.groups
        for stack, kept in zip(_stacks, self.stacks, strict=True):
            stack[:] = kept


class Turns(Owned):
    """The threads of some ranks, which a forked child does not have.

    Args:
        num: number of ranks.
        timeout_s: longest wait of a rank for others.

    Attributes:
        ended: called once the threads have ended.
    """

    def __init__(self, num: int, timeout_s: float) -> None:
        _tell_meshes_apart()
        self._timeout_s = timeout_s
        self._changed = Condition()
        self._is_busy = False
        self._ends = False
        self.ended: Callable[[], None] = lambda: None
        self._work: list[deque[Callable[[], None]]] = [deque() for _ in range(num)]
        self._states = [_State(torch.Generator().get_state(), _GroupsOfRank()) for _ in range(num)]
        self._threads = [Thread(lambda place=place: self._serve(place)) for place in range(num)]  # type: ignore[misc]
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """In a forked child: refuse use, and forget the threads, and a lock that one of them may hold."""
        self.forked_from = parent
        self._changed = Condition()
        self._threads.clear()

    def run(self, tasks: Sequence[tuple[int, Callable[[], Any]]]) -> list[Any]:
        """Run functions on ranks, and wait for their ends; return what each returned or raised.

        Raises:
            ForkedError: this process was forked from the one that has the threads.
        """
        self.check_own()
        results: dict[int, Any] = {}
        own = _State.taken()
        with self._changed:
            if self._ends:
                raise RuntimeError("this mesh of local ranks was stopped")
            torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
            try:
                for place, task in tasks:
                    self._work[place].append(lambda place=place, task=task: self._do(place, task, results))  # type: ignore[misc]
                self._changed.notify_all()
                self._changed.wait_for(lambda: len(results) == len(tasks))
            finally:
                torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]
        own.put()
        return [results[place] for place, _ in tasks]

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Let other ranks run until *ready*; on a rank's thread.

        Raises:
            RuntimeError: that took too long.
        """
        own = _State.taken()
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: ready() and not self._is_busy, self._timeout_s)
            self._changed.wait_for(lambda: not self._is_busy)
            self._is_busy = True
        own.put()
        if not done:
            raise RuntimeError(f"{what} took more than {self._timeout_s:g} s: other ranks do not take part")

    def wake(self) -> None:
        """Have waiting ranks check again what they wait for; from any thread."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """End the threads, which are idle; no-op in a forked child."""
        if self.forked_from:
            return
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.ended()

    def _serve(self, place: int) -> None:
        work, _thread.number = self._work[place], next(_numbers)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ends or (bool(work) and not self._is_busy))
                if not work:
                    return
                self._is_busy = True
            work.popleft()()

    def _do(self, place: int, task: Callable[[], Any], results: dict[int, Any]) -> None:
        self._states[place].put()
        try:
            result = task()
        except BaseException as error:  # noqa: BLE001 handed to the program's thread
            result = error
        self._states[place] = _State.taken()
        with self._changed:
            results[place] = result
            self._is_busy = False
            self._changed.notify_all()
