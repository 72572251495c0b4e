"""A log of what was issued since the last commit that all ranks have done, to issue it again after a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Any, NamedTuple

import torch

from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.stream.layout import layout_of
from monarch_hpc.tensor.stream.records import CallRequest, ProgramSpec
from monarch_hpc.tensor.stream.sites import Site

__all__ = ["IssueLog", "LoggedFrame"]

_INT_BYTES = 8
_HANDED_OVER = {
    records.LEND: "an actor was called with a mesh tensor",
    records.LOAN: "a tensor was lent to a stream",
    records.TAKE: "a tensor was lent to a stream",
}


class LoggedFrame(NamedTuple):
    """A frame as it was sent, see `TensorEngine.send`."""

    view: Any
    base: int
    ints: list[int]
    objects: list[Any]
    sites: list[Site]


class _Commit(NamedTuple):
    version: int
    seq: int
    graded: frozenset[int]


class IssueLog:
    """The frames of an engine; for any thread.

    Args:
        max_bytes: limit of what is kept; the oldest frames are dropped, so that nothing before is issued again.
        spec_of: the template with a number.
    """

    def __init__(self, max_bytes: int, spec_of: Callable[[int], Any]) -> None:
        self._max_bytes = max_bytes
        self._spec_of = spec_of
        self._frames: deque[LoggedFrame] = deque()
        self._commits: deque[_Commit] = deque()
        self._once: deque[tuple[int, str]] = deque()
        self._num_bytes = 0
        self._dropped_at = 0
        self._lock = RLock()

    # ---- notes ----

    def add(self, frame: LoggedFrame) -> None:
        """Keep a frame, none of whose objects changes."""
        with self._lock:
            self._frames.append(frame)
            self._num_bytes += _size(frame)
            while self._num_bytes > self._max_bytes:
                oldest = self._frames.popleft()
                self._num_bytes -= _size(oldest)
                self._dropped_at = oldest.base + len(oldest.sites)

    def note_commit(self, version: int, seq: int, graded: Iterable[int]) -> None:
        """Note a commit.

        Args:
            version: its number.
            seq: number of the operation after it.
            graded: leaves that have a gradient there.
        """
        with self._lock:
            self._commits.append(_Commit(version, seq, frozenset(graded)))

    def restart(self, version: int, seq: int, graded: Iterable[int]) -> None:
        """Note that nothing before operation *seq* is issued again; arguments as of `note_commit`."""
        with self._lock:
            self._frames.clear()
            self._commits.clear()
            self._once.clear()
            self._num_bytes = 0
            self.note_commit(version, seq, graded)

    def note_once(self, seq: int, why: str) -> None:
        """Note that operation *seq* must not be executed again."""
        self._once.append((seq, why))

    def note_done(self, seq: int) -> None:
        """Note that all ranks have executed what was issued before operation *seq*."""
        with self._lock:
            commits = self._commits
            while len(commits) > 1 and commits[1].seq <= seq:
                commits.popleft()
            if not commits or commits[0].seq > seq:
                return
            begin = commits[0].seq
            while self._frames and self._frames[0].base + len(self._frames[0].sites) < begin:
                self._num_bytes -= _size(self._frames.popleft())
            while self._once and self._once[0][0] < begin:
                self._once.popleft()

    # ---- issuing again ----

    def graded_at(self, version: int) -> list[int]:
        """The leaves that had a gradient at a version."""
        with self._lock:
            return next((sorted(one.graded) for one in self._commits if one.version == version), [])

    def obstacle(self, version: int, unsent: LoggedFrame | None) -> str:
        """Why what followed a version cannot be issued again; empty if it can.

        Args:
            version: the version.
            unsent: what is to follow the frames.
        """
        with self._lock:
            commits, once = list(self._commits), list(self._once)
        commit = next((one for one in commits if one.version == version), None)
        if commit is None:
            return f"version {version} was not made while it was kept"
        if commit.seq < self._dropped_at:
            return f"more was issued since version {version} than tensor.reissue_bytes: commit more often, or raise it"
        for seq, why in once:
            if seq >= commit.seq:
                return f"{why} since version {version}"
        for frame in (*self.since(version), *(() if unsent is None else (unsent,))):
            for at, _ in self._records(frame):
                number = frame.ints[at]
                if number in _HANDED_OVER:
                    return f"{_HANDED_OVER[number]} since version {version}"
                if number >= records.FIRST_TEMPLATE and isinstance(self._spec_of(number), ProgramSpec):
                    return f"a captured step was replayed since version {version}"
        return ""

    def since(self, version: int) -> list[LoggedFrame]:
        """The frames after a version."""
        with self._lock:
            begin = next(one.seq for one in self._commits if one.version == version)
            found = [frame for frame in self._frames if frame.base + len(frame.sites) >= begin]
        return [cut for frame in found if (cut := self._cut(frame, begin)).ints]

    def _cut(self, frame: LoggedFrame, begin: int) -> LoggedFrame:
        first, seq = -1, frame.base
        for at, num in self._records(frame):
            if seq >= begin:
                first = at
                break
            seq += num
        if first < 0:
            return frame._replace(ints=[], sites=[])
        skipped = seq - frame.base
        return frame._replace(base=seq, ints=frame.ints[first:], sites=frame.sites[skipped:])

    def _records(self, frame: LoggedFrame) -> Iterable[tuple[int, int]]:
        """Where records begin, and how many operations each is."""
        ints, at = frame.ints, 0
        while at < len(ints):
            number = ints[at]
            if number == records.FREE:
                yield at, 0
            elif number >= records.FIRST_TEMPLATE and isinstance(spec := self._spec_of(number), ProgramSpec):
                yield at, spec.num_ops
            else:
                yield at, 1
            at += layout_of(ints, at, frame.objects, self._spec_of).size


def _size(frame: LoggedFrame) -> int:
    return _INT_BYTES * len(frame.ints) + sum(map(_object_size, frame.objects))


def _object_size(obj: object) -> int:
    if isinstance(obj, torch.Tensor):
        return obj.nbytes
    if isinstance(obj, CallRequest):
        buffers: Sequence[Any] = obj.buffers
        return len(obj.packed) + sum(memoryview(one).nbytes for one in buffers)
    return 0
