"""Every error a user can meet, in one tree.

    MonarchError
    |-- ConfigError            a key, a file or a flag is wrong
    |-- SlurmError
    |   |-- SlurmMissing       no Slurm command on this machine
    |   |-- SlurmCommandError  a Slurm command refused; its own words are kept
    |   |   `-- SlurmBusy      slurmctld did not answer; the request may be repeated
    |   |-- SlurmParseError    Slurm printed what we do not understand
    |   `-- JobFailed          the job of an allocation ended
    |-- AllocationError        an allocation by that name, in that state, cannot be used
    |   `-- AgentsMissing      hosts whose agent did not report in time
    |-- TransportError
    |   |-- ChannelClosed      this side closed
    |   |-- PeerLost           the other side, or the wire, is gone
    |   |-- FrameError         bytes that are no frame
    |   |-- MemoryAccessError  registered memory of another process cannot be read or written so
    |   |-- AuthenticationError  the other side could not prove the allocation's key
    |   `-- VersionMismatch    Python, package or protocol differ between the two sides
    |-- ActorError
    |   |-- ActorFailed        an endpoint raised on one rank
    |   |-- SupervisionError   a RuntimeError too
    |   |   |-- ActorDied        the actor, its proc or its host is gone
    |   |   `-- DeliveryUnknown  sent, not answered, and the peer is gone
    |   |-- CallTimeout        not answered within the call's own time limit; a TimeoutError too
    |   |-- PortClosed         nothing more comes through a port
    |   |-- MeshError          several ranks failed
    |   |   `-- MeshDied         they are gone; a SupervisionError too
    |   |-- ScriptFailed       a script on a mesh exited with another status than 0
    |   `-- SpawnError         a proc could not be started
    |-- ForkedError            a forked child used what is its parent's; a RuntimeError too
    |-- LabError               the Slurm lab on this machine cannot do what was asked
    `-- InternalError          our bug

Fields come first and are passed to `super().__init__`, so that every error survives pickling on
its way from another host; `__str__` builds the sentence.
"""

from __future__ import annotations

from monarch_hpc.core.errors.actor import (
    ActorDied,
    ActorError,
    ActorFailed,
    CallTimeout,
    DeliveryUnknown,
    MeshDied,
    MeshError,
    PortClosed,
    ScriptFailed,
    SpawnError,
    SupervisionError,
)
from monarch_hpc.core.errors.root import ConfigError, ForkedError, InternalError, LabError, MonarchError
from monarch_hpc.core.errors.slurm import (
    AgentsMissing,
    AllocationError,
    JobFailed,
    SlurmBusy,
    SlurmCommandError,
    SlurmError,
    SlurmMissing,
    SlurmParseError,
)
from monarch_hpc.core.errors.transport import (
    AuthenticationError,
    ChannelClosed,
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
    "CallTimeout",
    "ChannelClosed",
    "ConfigError",
    "DeliveryUnknown",
    "ForkedError",
    "FrameError",
    "InternalError",
    "JobFailed",
    "LabError",
    "MemoryAccessError",
    "MeshDied",
    "MeshError",
    "MonarchError",
    "PeerLost",
    "PortClosed",
    "ScriptFailed",
    "SlurmBusy",
    "SlurmCommandError",
    "SlurmError",
    "SlurmMissing",
    "SlurmParseError",
    "SpawnError",
    "SupervisionError",
    "TransportError",
    "VersionMismatch",
]
