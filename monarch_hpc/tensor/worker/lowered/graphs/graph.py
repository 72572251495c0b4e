"""Replays a run of operators as one graph on memory that stays, or says that its operators are to be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.lowered.code import compile_code
from monarch_hpc.tensor.worker.lowered.graphs.places import CannotGraph, MemoryPlace, contested, extent_of, flat
from monarch_hpc.tensor.worker.lowered.graphs.segments import Segment
from monarch_hpc.tensor.worker.lowered.trace import Call

__all__ = ["GraphRecorder", "RecordedGraph", "SegmentGraph"]

_RUNS_BEFORE = 2
"""Replays that run the operators before a graph is made: libraries and allocators settle, and two show what moves."""


class RecordedGraph(Protocol):
    """Operators that a device can execute again, on the same memory."""

    def replay(self) -> None:
        """Execute them, in turn with what this thread gives the device."""


GraphRecorder = Callable[[Callable[[list[Any]], None], list[Any]], RecordedGraph]
"""Makes a graph of a function of slots, without executing it; fills slots with tensors in memory of the graph.

It keeps no tensor of the slots. Raises `CannotGraph`, or what an operator raises."""


class _View(NamedTuple):
    """A result in memory of what is given: its slot, the slot of that, how far behind it, shape and strides."""

    slot: int
    of: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Copy(NamedTuple):
    """A result that outlives the next replay: its slot, the memory among those copied, and its place there."""

    slot: int
    memory: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class SegmentGraph:
    """The graph of a run of operators, once there is one.

    What it gets is used where it lies if it lies there in each replay; other tensors are copied to memory of the graph
    before a replay, and back if the operators write to them. Results in memory of the graph are copied if somebody may
    hold them when the next replay overwrites them; results that are views of what it gets are views of that again.

    Args:
        segment: the run.
        calls: its operators.
        record: makes graphs.
        limits: of graphs.

    Attributes:
        reason: why its operators run instead; empty if there is, or may be, a graph.
    """

    def __init__(self, segment: Segment, calls: Sequence[Call], record: GraphRecorder, limits: GraphLimits) -> None:
        self.reason = ""
        self._ins, self._outs, self._escaping = segment.ins, segment.outs, segment.escaping
        self._written = frozenset(number for number, slot in enumerate(segment.ins) if slot in segment.written)
        code = compile_code(calls, {slot for call in calls for slot in call.outs if slot is not None} - {*segment.outs})
        self._code: Callable[[list[Any]], None] = lambda slots: code(slots, None)
        self._record = record
        self._num_captures = limits.captures
        self._num_runs = 0
        self._last: list[MemoryPlace] = []
        self._moving: set[int] = set()
        self._forget()

    def _forget(self) -> None:
        self._graph: RecordedGraph | None = None
        self._copied: dict[int, torch.Tensor] = {}  # what a given tensor is copied to, by its number
        self._shared: list[tuple[int, torch.Tensor]] = []
        self._views: list[_View] = []
        self._copies: list[_Copy] = []
        self._memories: list[torch.Tensor] = []

    @property
    def is_recorded(self) -> bool:
        """Whether there is a graph."""
        return self._graph is not None

    def give_up(self, reason: str) -> None:
        """Run operators from here on."""
        self.reason = reason
        self._forget()

    def is_ready(self, slots: list[Any]) -> bool:
        """Whether `replay` does what the operators would do; they are expected to run if not. Changes no value.

        Args:
            slots: the tensors; those that the operators use are there.
        """
        if self.reason:
            return False
        try:
            places = [MemoryPlace.of(slots[slot]) for slot in self._ins]
            if self._graph is not None:
                if self._fits(places):
                    return True
                self._forget()
            return self._prepare(places, slots)
        except CannotGraph as refusal:
            self.give_up(refusal.reason)
        except Exception as error:  # noqa: BLE001 torch's errors of any class; operators run, and may succeed
            self.give_up(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return False

    def replay(self, slots: list[Any]) -> None:
        """Do what the operators do, after `is_ready`."""
        assert self._graph is not None
        copied = list(self._copied.values())
        given = [flat(slots[self._ins[number]]) for number in self._copied]
        if copied:
            torch._foreach_copy_(copied, given)
        self._graph.replay()
        back = [at for at, number in enumerate(self._copied) if number in self._written]
        if back:
            torch._foreach_copy_([given[at] for at in back], [copied[at] for at in back])
        for slot, tensor in self._shared:
            slots[slot] = tensor
        for view in self._views:
            base = slots[view.of]
            slots[view.slot] = base.as_strided(view.shape, view.stride, base.storage_offset() + view.offset)
        if self._copies:
            memories = [torch.empty_like(memory) for memory in self._memories]
            torch._foreach_copy_(memories, self._memories)
            for slot, memory, dtype, offset, shape, stride in self._copies:
                slots[slot] = _tensor_in(memories[memory].untyped_storage(), dtype, offset, shape, stride)

    # ---- whether there is a graph ----

    def _fits(self, places: list[MemoryPlace]) -> bool:
        """Whether the graph can use what it gets."""
        if self._copied and self._written and not contested(places, self._written).isdisjoint(self._copied):
            return False
        return all(
            (place.is_aligned and place.looks_like(before)) if number in self._copied else place == before
            for number, (place, before) in enumerate(zip(places, self._last, strict=True))
        )

    def _prepare(self, places: list[MemoryPlace], slots: list[Any]) -> bool:
        last, self._last = self._last, places
        if not all(map(MemoryPlace.looks_like, places, last)) or len(last) != len(places):
            self._num_runs = 0
        else:
            self._moving.update(number for number, place in enumerate(places) if place != last[number])
        self._num_runs += 1
        if self._num_runs <= _RUNS_BEFORE:
            return False
        if not self._num_captures:
            raise CannotGraph("memory or shapes that change too often (tensor.graph_captures)")
        self._num_captures -= 1
        self._num_runs = 0
        self._capture(places, slots)
        return True

    def _capture(self, places: list[MemoryPlace], slots: list[Any]) -> None:
        fixed = contested(places, self._written)
        inside: list[Any] = [None] * len(slots)
        for number, slot in enumerate(self._ins):
            inside[slot] = slots[slot]
            if number in self._moving and number not in fixed and places[number].is_aligned:
                place = places[number]
                extent = extent_of(place.shape, place.stride)
                copied = torch.empty(extent, dtype=place.dtype, device=place.device)
                inside[slot] = copied.copy_(flat(slots[slot])).as_strided(place.shape, place.stride)
                self._copied[number] = copied
        graph = self._record(self._code, inside)
        given = {inside[slot].untyped_storage()._cdata: slot for slot in reversed(self._ins)}
        memories: dict[int, int] = {}
        for slot in self._outs:
            tensor = inside[slot]
            MemoryPlace.of(tensor)
            memory, shape, stride = tensor.untyped_storage(), tuple(tensor.shape), tensor.stride()
            of = given.get(memory._cdata)
            if of is not None:
                if tensor.dtype != inside[of].dtype:
                    raise CannotGraph("a result that sees an argument as elements of another type")
                offset = tensor.storage_offset() - inside[of].storage_offset()
                self._views.append(_View(slot, of, offset, shape, stride))
            elif slot not in self._escaping:
                self._shared.append((slot, tensor))
            else:
                at = memories.setdefault(memory._cdata, len(memories))
                if at == len(self._memories):
                    whole = (memory.nbytes(),)
                    self._memories.append(_tensor_in(memory, torch.uint8, 0, whole, (1,), tensor.device))
                self._copies.append(_Copy(slot, at, tensor.dtype, tensor.storage_offset(), shape, stride))
        self._graph = graph


def _tensor_in(
    memory: Any, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], device: Any = None
) -> torch.Tensor:
    """A tensor in some memory."""
    empty = torch.empty(0, dtype=dtype, device=memory.device if device is None else device)
    return empty.set_(memory, offset, shape, stride)
