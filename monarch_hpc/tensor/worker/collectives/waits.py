"""Waits for other ranks that an abort ends, whatever gloo does: it does not wake every thread that waits in it.

A connection that ends between the head and the body of a message leaves the receive waiting (docs/design/0014).
"""

from __future__ import annotations

import math
from _thread import allocate_lock
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.text.description import text_of

__all__ = ["CollectiveWork", "PeerWork", "Waits"]

T = TypeVar("T")

_SLICE_S = 0.05
"""Longest part of a wait between two looks for an abort. A look costs less than a thousandth of it."""

_SLICE = timedelta(seconds=_SLICE_S)
_NO_LIMIT = timedelta(0)

_Work: Any = dist.Work


class Waits:
    """All waits of a rank in one epoch.

    Attributes:
        cause: why they have ended; empty if they have not.
    """

    def __init__(self) -> None:
        self.cause = ""
        self._lock = Lock()
        self._idle: list[_Caller] = []
        self._futures: set[Any] = set()

    def abort(self, cause: str) -> None:
        """End the waits under way and all to come; from any thread. Only the first cause counts."""
        with self._lock:
            self.cause = self.cause or cause
            futures, self._futures = self._futures, set()
            idle, self._idle = self._idle, []
        for caller in idle:
            caller.end()
        for future in futures:
            future.set_result((None, self.cause))

    def check(self) -> None:
        """Raise if the waits have ended."""
        if self.cause:
            raise RuntimeError(self.cause)

    def call(self, call: Callable[[], T]) -> T:
        """The result of a call without a limit of its own, on another thread, which goes on if this wait is aborted."""
        self.check()
        with self._lock:
            caller = self._idle.pop() if self._idle else _Caller()
        one = _Call(call)
        caller.calls.put(one)
        try:
            while not one.ended.acquire(timeout=_SLICE_S):
                self.check()
        except BaseException:
            caller.end()
            raise
        with self._lock:
            if not self.cause:
                self._idle.append(caller)
                caller = None  # type: ignore[assignment]  # it stays
        if caller is not None:
            caller.end()
        found: T = one.outcome()
        return found

    def ask(self, get: Callable[[float], T], timeout_s: float) -> T:
        """The result of *get*, which raises TimeoutError after as many seconds as it is given, and can be repeated."""
        until = monotonic() + timeout_s
        while True:
            self.check()
            left = until - monotonic()
            try:
                return get(max(0.0, min(left, _SLICE_S)))
            except TimeoutError:
                if left <= _SLICE_S:
                    raise

    def future(self, given: Any, after: Callable[[], None]) -> Any:
        """A future with the outcome of *given*, or an abort; for C++ code that waits in it without a limit.

        Args:
            given: a future of torch.
            after: called once it has a value.
        """
        outcome: Any = torch.futures.Future()
        # Of one on which `set_exception` is called, C++ code takes the error for the value, and DDP crashes.
        found = outcome.then(_unwrap)
        with self._lock:
            self.check()
            self._futures.add(outcome)

        def settle(done: Any) -> None:
            with self._lock:
                if outcome not in self._futures:
                    return
                self._futures.discard(outcome)
            try:
                value = done.value()
                after()
            except Exception as error:  # noqa: BLE001 for the code that waits in it
                outcome.set_result((None, text_of(error)))
            else:
                outcome.set_result((value, None))

        given.add_done_callback(settle)
        return found


def _unwrap(outcome: Any) -> Any:
    """The value of an outcome, or its problem as an exception.

    One that is in the outcome keeps it, and the callers of whoever settles it: from Python 3.12 on, the traceback is
    a part of the exception even where C++ takes it, and the garbage collector does not see into torch's futures.
    """
    value, problem = outcome.value()
    if problem is not None:
        raise RuntimeError(problem)
    return value


class _Call:
    """A call, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._value: Any = None
        self._error: BaseException | None = None
        self.ended = allocate_lock()
        self.ended.acquire()

    def run(self) -> None:
        try:
            assert self._call is not None
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 for the thread that waits for it
            self._error = error
        self._call = None
        self.ended.release()

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class _Caller:
    """A thread that makes calls one after the other."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        Thread(self._run)

    def end(self) -> None:
        """End the thread after the call under way."""
        self.calls.put(None)

    def _run(self) -> None:
        while (one := self.calls.get()) is not None:
            one.run()
            del one  # its value is of the thread that waits, or of nobody


class CollectiveWork(_Work):  # type: ignore[misc]  # torch does not declare it
    """A collective under way.

    Args:
        work: gloo's, whose wait has a limit.
        waits: of its epoch.
        under_way: the works of the group that may not have ended.
        after: called once it is done.
    """

    def __init__(self, work: Any, waits: Waits, under_way: set[Any], after: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._work = work
        self._waits = waits
        self._under_way = under_way
        self._after = after
        self._future: Any = None
        under_way.add(work)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait until it is done; raise what failed, or the cause of an abort."""
        work = self._work
        until = monotonic() + timeout.total_seconds() if timeout else math.inf
        while True:
            try:
                work.wait(_SLICE)
                break
            except Exception:
                self._waits.check()
                if work.is_completed():  # it has failed, or has ended since
                    self._under_way.discard(work)
                    work.wait()
                    break
                if monotonic() >= until:
                    raise
        self._end()
        return True

    def _end(self) -> None:
        self._under_way.discard(self._work)
        after, self._after = self._after, None
        if after is not None:
            after()

    def get_future(self) -> Any:
        """A future of its result."""
        if self._future is None:
            self._future = self._waits.future(self._work.get_future(), self._end)
        return self._future

    def is_completed(self) -> bool:
        """Tell whether it has ended."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Tell whether it has ended well."""
        return bool(self._work.is_success())

    def exception(self) -> Any:
        """What failed."""
        return self._work.exception()

    def result(self) -> Any:
        """The tensors of its result."""
        return self._work.result()


class PeerWork(_Work):  # type: ignore[misc]  # torch does not declare it
    """A send or a receive under way, on whose wait gloo closes all connections when its limit has passed.

    Args:
        work: gloo's.
        waits: of its epoch.
        after: called once it is done.
    """

    def __init__(self, work: Any, waits: Waits, after: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._work = work
        self._waits = waits
        self._after = after
        self._is_done = False

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait until it is done; raise what failed, or the cause of an abort."""
        if not self._is_done:
            self._waits.call(lambda: self._work.wait(timeout))
            self._is_done = True
            after, self._after = self._after, None
            if after is not None:
                after()
        return True

    def is_completed(self) -> bool:
        """Tell whether it was waited for: gloo does not say more."""
        return self._is_done

    def source_rank(self) -> int:
        """The rank that has sent, if any could."""
        return int(self._work.source_rank())

    _source_rank = source_rank
