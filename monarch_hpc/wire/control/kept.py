"""Messages about kept meshes: procs that outlive the run which started them, and serve later programs by name."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["KeepMesh", "KeepProcs", "KeptOpened", "KeptStopped", "MeshKept", "OpenKept", "ProcsKept", "StopKept"]


@dataclass(frozen=True, slots=True)
class KeepMesh(Message):
    """Program to head: a mesh that it has started stays when its run ends, under a name.

    Args:
        num_ranks: size of the mesh.
        number: the program's number of the request, which stands in the answer.
    """

    run: str
    mesh: int
    name: str
    num_ranks: int
    number: int


@dataclass(frozen=True, slots=True)
class MeshKept(Message):
    """Head to program: the mesh stays; all its hosts know."""

    run: str
    mesh: int
    number: int


@dataclass(frozen=True, slots=True)
class KeepProcs(Message):
    """Head to agents: the procs of this mesh do not end with their run."""

    run: str
    mesh: int
    name: str
    num_ranks: int


@dataclass(frozen=True, slots=True)
class ProcsKept(Message):
    """Agent to head: the procs of this mesh on its host stay; sent after a `ProcReady` of each, to each later head."""

    run: str
    mesh: int
    name: str
    num_ranks: int
    host: int


@dataclass(frozen=True, slots=True)
class OpenKept(Message):
    """Program to head: use a kept mesh.

    Args:
        run: the program's own run.
        number: the program's number of the request, which stands in the answer.
        again: the head of an earlier term has opened it; this one may not know of it yet.
    """

    run: str
    name: str
    number: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class KeptOpened(Message):
    """Head to program: all reports about the procs of a kept mesh have been sent; later ones follow.

    Args:
        run: the run that started the procs.
    """

    run: str
    mesh: int
    name: str
    num_ranks: int
    number: int


@dataclass(frozen=True, slots=True)
class StopKept(Message):
    """Program or tool to head: end a kept mesh.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL of its procs.
        number: the sender's number of the request, which stands in the answer.
    """

    name: str
    grace_s: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class KeptStopped(Message):
    """Head to the sender of `StopKept`: no proc of the mesh is left."""

    name: str
    number: int
