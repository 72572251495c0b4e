"""The table of all control messages, by which they are decoded.

It stands apart from `message`: a proc encodes its hello, and a command reads one answer; they should not load the
messages that others exchange.
"""

from __future__ import annotations

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.control.allocation import (
    AllocationEnds,
    DrainHost,
    FreeHosts,
    HostEnded,
    HostReturned,
    HostsFreed,
    HostStillLost,
    Join,
    Roster,
    ShutDown,
    ShutDownDone,
    Status,
    StatusReport,
    Vacate,
    Vacated,
)
from monarch_hpc.wire.control.clocks import AskClock, ClockTold
from monarch_hpc.wire.control.deadline import (
    AwaitDeadline,
    DeadlineMet,
    DeadlineNear,
    JobEnd,
    SetJobEnd,
    Terminated,
)
from monarch_hpc.wire.control.kept import (
    KeepMesh,
    KeepProcs,
    KeptOpened,
    KeptStopped,
    MeshKept,
    OpenKept,
    ProcsKept,
    StopKept,
)
from monarch_hpc.wire.control.links import LinkGiven, LinkOver, LinkRoute, LinkTaken
from monarch_hpc.wire.control.message import Message, make, parse
from monarch_hpc.wire.control.output import FlushLogs, LogsSet, Output, SetLogs
from monarch_hpc.wire.control.procs import (
    ProcEnded,
    ProcHello,
    ProcLife,
    ProcReady,
    ProcReplaced,
    ProcsStopped,
    ReplacementTaken,
    SpawnFailed,
    SpawnProcs,
    StopProcs,
)
from monarch_hpc.wire.control.programs import (
    InputTaken,
    JobSubmitted,
    ProgramEnded,
    ProgramOutput,
    ProgramStarted,
    ReadOutput,
    ResizeTerminal,
    ServeJobs,
    SignalProgram,
    SignalSent,
    StartProgram,
    SubmitJob,
    WriteInput,
)
from monarch_hpc.wire.control.questions import Ask, AskHosts, AskSql, Rows, SqlAnswer
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, Recording, RunClosed, RunLinks, RunOpened, RunTaken
from monarch_hpc.wire.control.scribe import (
    AskEngine,
    AskHelper,
    BeginLeaf,
    BeginSampling,
    ClockIs,
    KeepRecords,
    MergeParts,
    ProcOver,
    ProcRuns,
    Ship,
    Shipped,
)
from monarch_hpc.wire.control.succession import Acknowledge, Announce, AskVoice, GiveVoice, Resign, Rules

__all__ = ["MESSAGES", "decode"]

MESSAGES: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        Join,
        Roster,
        HostEnded,
        HostStillLost,
        HostReturned,
        AllocationEnds,
        Status,
        StatusReport,
        ShutDown,
        ShutDownDone,
        DrainHost,
        FreeHosts,
        HostsFreed,
        Vacate,
        Vacated,
        OpenRun,
        RunOpened,
        RunTaken,
        RunLinks,
        CloseRun,
        RunClosed,
        SpawnProcs,
        ProcHello,
        ProcReady,
        SpawnFailed,
        ProcEnded,
        ProcLife,
        ProcReplaced,
        ReplacementTaken,
        StopProcs,
        ProcsStopped,
        KeepMesh,
        KeepProcs,
        ProcsKept,
        MeshKept,
        OpenKept,
        KeptOpened,
        StopKept,
        KeptStopped,
        Output,
        SetLogs,
        FlushLogs,
        LogsSet,
        Recording,
        Ask,
        AskHosts,
        Rows,
        AskSql,
        SqlAnswer,
        AskClock,
        ClockTold,
        LinkGiven,
        LinkTaken,
        LinkRoute,
        LinkOver,
        SetJobEnd,
        JobEnd,
        AwaitDeadline,
        DeadlineNear,
        DeadlineMet,
        Terminated,
        StartProgram,
        ProgramStarted,
        WriteInput,
        ServeJobs,
        SubmitJob,
        JobSubmitted,
        InputTaken,
        SignalProgram,
        SignalSent,
        ResizeTerminal,
        ReadOutput,
        ProgramOutput,
        ProgramEnded,
        Announce,
        Acknowledge,
        AskVoice,
        GiveVoice,
        Rules,
        Resign,
        AskHelper,
        AskEngine,
        MergeParts,
        BeginLeaf,
        BeginSampling,
        KeepRecords,
        ProcRuns,
        ProcOver,
        ClockIs,
        Ship,
        Shipped,
        Refused,
    )
}
"""All messages, by the name that stands in their field ``op``."""


def decode(body: bytes | bytearray | memoryview) -> Message:
    """Read the body of a CONTROL frame.

    Raises:
        FrameError: not JSON, an unknown message, or a field that is missing, unknown or of the wrong type.
    """
    name, document = parse(body)
    cls = MESSAGES.get(name)
    if cls is None:
        raise FrameError(f"unknown control message {name!r:.80}")
    return make(cls, document)
