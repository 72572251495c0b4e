"""The tree of all errors that users can meet.

    MonarchError
    |-- ConfigError            a key, a file or a flag is wrong
    |-- SlurmError
    |   |-- SlurmMissing       a Slurm command is not on this machine's PATH
    |   |-- SlurmCommandError  a Slurm command failed; its message is kept
    |   |   `-- SlurmBusy      slurmctld did not answer; the request may be retried
    |   |-- SlurmParseError    Slurm's output cannot be parsed
    |   `-- JobFailed          the job of an allocation ended
    |-- AllocationError        no allocation of that name, or its state does not permit the request
    |   |-- AgentsMissing      the agents of some hosts did not report in time
    |   `-- TimeTooShort       less time is left than a run needs
    |-- TransportError
    |   |-- ChannelClosed      this side closed the channel
    |   |-- EngineFailed       this process cannot communicate any more
    |   |-- PeerLost           the other side, or the wire, is gone
    |   |-- FrameError         bytes that are not a frame
    |   |-- MemoryAccessError  registered memory of another process cannot be read or written as asked
    |   |-- AuthenticationError  the other side could not prove the allocation's key
    |   `-- VersionMismatch    Python, package or protocol differ between the two sides
    |-- ActorError             what an endpoint raised: the actor lives
    |   |-- ActorFailed        describes or wraps an exception of which no `ActorError` could be made
    |   |-- MeshError          endpoints raised on ranks of one call; also a CallFailed
    |   |-- PoisonMessage      the message has killed several lives of a proc, and is put aside
    |   |-- ScriptFailed       a script on a mesh exited with a status other than 0
    |   `-- BootstrapFailed    the bootstrap function of procs raised; also a SpawnError
    |-- SupervisionError       a death: the actor is gone; also a RuntimeError
    |   |-- ActorDied          the actor cannot answer
    |   |   `-- ProcDied         its process is gone
    |   |       `-- HostLost       its host is gone
    |   |-- DeliveryUnknown    sent, not answered, and the peer is gone
    |   `-- MeshDied           ranks of one call are gone; also a CallFailed
    |-- CallFailed             ranks of one call failed
    |-- CopyFailed             some of several copies of memory failed; the others are whole
    |   `-- CopyTimeout        they were not done in time; also a TimeoutError
    |-- CallTimeout            not answered within the call's own time limit; also a TimeoutError
    |-- PortClosed             a port will deliver no more values
    |-- QueryError             a question in SQL cannot be answered
    |-- SpawnError             a proc could not be started
    |-- ForkedError            a forked child used its parent's connections or actors; also a RuntimeError
    |-- RemoteOpError          an operation on mesh tensors failed on a rank
    |-- DeviceMeshError        a mesh of tensors has lost a rank
    |-- LabError               the Slurm lab on this machine cannot do what was asked
    `-- InternalError          a bug in monarch-hpc

Each constructor passes all its fields to `super().__init__`, so that the error survives pickling between hosts;
`__str__` builds the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.core.errors.actor import (
        ActorDied,
        ActorError,
        ActorFailed,
        BootstrapFailed,
        CallTimeout,
        DeliveryUnknown,
        HostLost,
        PoisonMessage,
        PortClosed,
        ProcDied,
        ScriptFailed,
        SpawnError,
        SupervisionError,
    )
    from monarch_hpc.core.errors.call import CallFailed, MeshDied, MeshError
    from monarch_hpc.core.errors.copy_failures import CopyFailed, CopyTimeout
    from monarch_hpc.core.errors.root import ConfigError, ForkedError, InternalError, LabError, MonarchError, QueryError
    from monarch_hpc.core.errors.slurm import (
        AgentsMissing,
        AllocationError,
        JobFailed,
        SlurmBusy,
        SlurmCommandError,
        SlurmError,
        SlurmMissing,
        SlurmParseError,
        TimeTooShort,
    )
    from monarch_hpc.core.errors.tensor import DeviceMeshError, RemoteOpError
    from monarch_hpc.core.errors.transport import (
        AuthenticationError,
        ChannelClosed,
        EngineFailed,
        FrameError,
        MemoryAccessError,
        PeerLost,
        TransportError,
        VersionMismatch,
    )

__all__ = [
    "ActorDied",
    "ActorError",
    "ActorFailed",
    "AgentsMissing",
    "AllocationError",
    "AuthenticationError",
    "BootstrapFailed",
    "CallFailed",
    "CallTimeout",
    "ChannelClosed",
    "ConfigError",
    "CopyFailed",
    "CopyTimeout",
    "DeliveryUnknown",
    "DeviceMeshError",
    "EngineFailed",
    "ForkedError",
    "FrameError",
    "HostLost",
    "InternalError",
    "JobFailed",
    "LabError",
    "MemoryAccessError",
    "MeshDied",
    "MeshError",
    "MonarchError",
    "PeerLost",
    "PoisonMessage",
    "PortClosed",
    "ProcDied",
    "QueryError",
    "RemoteOpError",
    "ScriptFailed",
    "SlurmBusy",
    "SlurmCommandError",
    "SlurmError",
    "SlurmMissing",
    "SlurmParseError",
    "SpawnError",
    "SupervisionError",
    "TimeTooShort",
    "TransportError",
    "VersionMismatch",
]

_HOMES = {
    "ActorDied": "core.errors.actor",
    "ActorError": "core.errors.actor",
    "ActorFailed": "core.errors.actor",
    "AgentsMissing": "core.errors.slurm",
    "AllocationError": "core.errors.slurm",
    "AuthenticationError": "core.errors.transport",
    "BootstrapFailed": "core.errors.actor",
    "CallFailed": "core.errors.call",
    "CallTimeout": "core.errors.actor",
    "ChannelClosed": "core.errors.transport",
    "ConfigError": "core.errors.root",
    "CopyFailed": "core.errors.copy_failures",
    "CopyTimeout": "core.errors.copy_failures",
    "DeliveryUnknown": "core.errors.actor",
    "DeviceMeshError": "core.errors.tensor",
    "EngineFailed": "core.errors.transport",
    "ForkedError": "core.errors.root",
    "FrameError": "core.errors.transport",
    "HostLost": "core.errors.actor",
    "InternalError": "core.errors.root",
    "JobFailed": "core.errors.slurm",
    "LabError": "core.errors.root",
    "MemoryAccessError": "core.errors.transport",
    "MeshDied": "core.errors.call",
    "MeshError": "core.errors.call",
    "MonarchError": "core.errors.root",
    "PeerLost": "core.errors.transport",
    "PoisonMessage": "core.errors.actor",
    "PortClosed": "core.errors.actor",
    "ProcDied": "core.errors.actor",
    "QueryError": "core.errors.root",
    "RemoteOpError": "core.errors.tensor",
    "ScriptFailed": "core.errors.actor",
    "SlurmBusy": "core.errors.slurm",
    "SlurmCommandError": "core.errors.slurm",
    "SlurmError": "core.errors.slurm",
    "SlurmMissing": "core.errors.slurm",
    "SlurmParseError": "core.errors.slurm",
    "SpawnError": "core.errors.actor",
    "SupervisionError": "core.errors.actor",
    "TimeTooShort": "core.errors.slurm",
    "TransportError": "core.errors.transport",
    "VersionMismatch": "core.errors.transport",
}

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
