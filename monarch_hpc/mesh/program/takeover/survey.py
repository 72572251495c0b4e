"""Asks all procs of a run that is taken over for their actors, and for the answers that they have kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from functools import partial
from typing import Any, cast

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError, TransportError
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["SurveyedProc", "survey"]


@dataclass(slots=True, eq=False)
class SurveyedProc:
    """What a proc has told.

    Attributes:
        about: what its first program said of its mesh, packed; empty if that was lost before.
        actors: number, name, place in the mesh of procs, pickled class, name of the class.
        calls: caller, number, number of the actor, its name, the endpoint, whether it is answered, and in hand.
        problem: why the proc could not be asked; empty if it could.
    """

    proc: ProcRef
    about: bytes = b""
    actors: list[tuple[int, str, tuple[Any, ...], bytes, str]] = field(default_factory=list)
    calls: list[tuple[int, int, int, str, str, bool, bool]] = field(default_factory=list)
    num_dropped: int = 0
    problem: str = ""


def survey(
    runtime: Runtime,
    procs: Iterable[ProcRef],
    prepare: Callable[[FrameChannel], None],
    ask: Callable[[ProcRef, Callable[[Frame | MonarchError], None]], None],
    limit_s: float,
) -> list[SurveyedProc]:
    """Ask all *procs* at once; those that do not answer within *limit_s* seconds have a problem.

    Args:
        prepare: called with the channel to each proc before it is asked.
        ask: sends the question; calls back with the answer.
    """
    findings = [SurveyedProc(proc, problem=f"it has not answered within {limit_s:.0f} s") for proc in procs]
    left, done = {finding.proc.incarnation for finding in findings}, Flag(runtime.engine)

    def settle(finding: SurveyedProc, problem: str) -> None:
        finding.problem = problem
        left.discard(finding.proc.incarnation)
        if not left:
            done.set()

    def connected(finding: SurveyedProc, result: FrameChannel | TransportError) -> None:
        if isinstance(result, TransportError):
            settle(finding, f"it cannot be reached: {result}")
            return
        prepare(result)
        ask(finding.proc, partial(answered, finding))

    def answered(finding: SurveyedProc, given: Frame | MonarchError) -> None:
        if not isinstance(given, Frame) or given.kind is not Kind.RESULT:
            settle(
                finding, f"it has not told of its actors: {given if isinstance(given, MonarchError) else 'an error'}"
            )
            return
        finding.about, finding.actors, finding.calls, finding.num_dropped = cast(
            tuple[bytes, list[Any], list[Any], int], loads(given.body, given.buffers)
        )
        settle(finding, "")

    def begin() -> None:
        for finding in findings:
            proc = finding.proc
            runtime.node.dial(proc.addresses, proc.incarnation, partial(connected, finding), proc.allocation)
        if not findings:
            done.set()

    runtime.engine.call_soon(begin)
    done.wait(limit_s)
    return findings
