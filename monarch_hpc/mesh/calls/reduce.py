"""Reduces the answers to one call of an actor mesh to one value; hosts may have combined some of them already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from monarch_hpc.actor.casts.reduction import Folding
from monarch_hpc.actor.casts.targets import Reduce
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import InternalError
from monarch_hpc.mesh.calls.answer import CallOptions, read_answer
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.mesh.calls.gather import Gather
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import dumps

__all__ = ["ReducedCall"]

A = TypeVar("A")
R = TypeVar("R")

_COUNTED = Frame(Kind.RESULT, 0, 0, dumps(None)[0])
"""Stands for an answer that is contained in a part."""


class ReducedCall(Gather, Generic[A, R]):
    """All answers to one call: some combined into parts by procs of the mesh, the others one by one.

    Raises:
        TypeError: the functions must be sent to procs, and cannot be pickled.
    """

    def __init__(
        self, runtime: Runtime, callee: Callee, method: str, options: CallOptions, folding: Folding[A, R]
    ) -> None:
        super().__init__(runtime, callee, method, options)
        self._folding = folding
        self._parts: list[tuple[int, int, Frame]] = []  # first place, number of places, what they came to
        if len(callee.ranks) > runtime.casts.max_direct:
            self.reduce = Reduce(folding.pack(), self._take_part)

    def _take_part(self, places: Iterable[int], given: Frame | None) -> None:
        """See `Reduce.take`."""
        some = sorted(places)
        if self._callee.load is not None:
            self._callee.load.end_all([self._callee.ranks[place] for place in some])
        with self._lock:
            if self._over:
                return
            for place in some:
                self._answers[place] = _COUNTED
            if given is not None:
                self._parts.append((some[0], len(some), given))
            self._num_missing -= len(some)
            is_last = not self._num_missing
        if is_last:
            self._end()

    def reduced(self) -> A:
        """The combined value of all results.

        Raises:
            Exception: the exceptions of the ranks, or of the functions that combined their results.
        """
        if self.fails:
            self.collect()
        alone = [
            (place, 1, answer)
            for place, answer in enumerate(self._answers)
            if isinstance(answer, Frame) and answer is not _COUNTED
        ]
        if sum(num for _, num, _ in self._parts) + len(alone) != len(self._answers):
            raise InternalError(f"{self._callee.name}.{self._method}: answers were dropped, but no rank has failed")
        return self._folding.fold(self._read([*self._parts, *alone]))

    def _read(self, parts: list[tuple[int, int, Frame]]) -> Iterator[tuple[bool, Any]]:
        merged = {id(part) for _, _, part in self._parts}
        for place, (_, _, part) in enumerate(sorted(parts, key=lambda part: part[0])):
            value, failure = read_answer(part, again=place > 0)
            if failure is not None:
                raise failure
            yield id(part) in merged, value
