"""Plans which operators of a captured step are replayed as graphs, and says why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.lowered.code import Code, compile_code
from monarch_hpc.tensor.worker.lowered.graphs.cuda import CudaGraph
from monarch_hpc.tensor.worker.lowered.graphs.graph import GraphRecorder, SegmentGraph
from monarch_hpc.tensor.worker.lowered.graphs.segments import Segment, split
from monarch_hpc.tensor.worker.lowered.recording import ReplayRecording
from monarch_hpc.tensor.worker.lowered.trace import Call

__all__ = ["RECORDERS", "Stretch", "describe", "plan"]

RECORDERS: dict[str, GraphRecorder] = {"cuda": CudaGraph}
"""Makers of graphs, by type of device."""


class Stretch(NamedTuple):
    """A run of operators.

    Attributes:
        segment: the operators.
        codes: of the pieces, which run them.
        graph: what replays them instead; None if nothing does.
    """

    segment: Segment
    codes: tuple[Code, ...]
    graph: SegmentGraph | None


def plan(recording: ReplayRecording, limits: GraphLimits) -> list[Stretch]:
    """All operators of a step, in order."""
    found = []
    for segment in split(recording, RECORDERS, limits.least_ops):
        pieces = [recording.parts[piece.part].instructions[piece.begin : piece.end] for piece in segment.pieces]
        codes = tuple(compile_code(one, piece.drops) for one, piece in zip(pieces, segment.pieces, strict=True))
        graph = None
        if not segment.reason:
            calls = [one for piece in pieces for one in piece if isinstance(one, Call)]
            graph = SegmentGraph(segment, calls, RECORDERS[segment.device], limits)
        found.append(Stretch(segment, codes, graph))
    return found


def describe(stretches: Iterable[Stretch]) -> str:
    """Why operators are not in graphs; empty if all are."""
    reasons: Counter[str] = Counter()
    total = 0
    for segment, _, graph in stretches:
        total += segment.num_ops
        reason = segment.reason if graph is None else graph.reason
        if graph is None or not graph.is_recorded:
            reasons[reason or "run too seldom with memory that stays"] += segment.num_ops
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common() if count)
    return f"{sum(reasons.values())} of {total} operators are not in graphs: {told}" if told else ""
