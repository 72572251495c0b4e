"""Errors of tensors on meshes: an operation that failed on a rank, and a mesh that has lost one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from monarch_hpc.core.errors.root import MonarchError

__all__ = ["DeviceMeshError", "RemoteOpError"]


class RemoteOpError(MonarchError):
    """An operation on mesh tensors failed; raised when its result, or a value made from it, is first read.

    It is of the class that the operation raised, too, where that class can be imported here.

    Args:
        op: the operation.
        rank: the first rank on which it failed, in the mesh of procs.
        line: the line of the program that issued it.
        type_name: class of the remote exception.
        message: its text.
        remote_traceback: the formatted remote traceback; may be empty.
    """

    def __init__(self, op: str, rank: int, line: str, type_name: str, message: str, remote_traceback: str) -> None:
        super().__init__(op, rank, line, type_name, message, remote_traceback)
        self.op = op
        self.rank = rank
        self.line = line
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        trace = f"\nremote traceback:\n{self.remote_traceback.rstrip()}" if self.remote_traceback else ""
        return f"{self.op} on rank {self.rank}: {self.type_name}: {self.message}\nissued at {self.line}{trace}"


class DeviceMeshError(MonarchError):
    """A mesh of tensors cannot go on as it is: a rank has died, or has left its order.

    Args:
        mesh: the mesh of procs.
        kind: ``died`` if a rank is gone; ``diverged`` if one failed in an operation on sharded tensors and others did
            not; ``stuck`` if one does not come out of an operation; ``lost`` if no rank has a copy of a value;
            ``fenced`` if another program has taken the ranks; ``torn`` if ranks are at versions that cannot be, or a
            worker itself failed.
        rank: the first such rank; -1 if it is unknown, or there is none.
        cause: why, as text.
        host: of the rank; empty if it is unknown.
        last_lines: what its process wrote last; empty if that is unknown.
        version: the version at which a healed mesh goes on; -1 if it cannot be healed.
        stacks: where ranks were, by rank, if one is ``stuck``: the stack of each that executed something.
        remedy: what to do, in words; empty for what the version implies.
    """

    def __init__(
        self,
        mesh: str,
        kind: str,
        rank: int,
        cause: str,
        host: str = "",
        last_lines: Sequence[str] = (),
        version: int = -1,
        stacks: Mapping[int, str] = MappingProxyType({}),
        remedy: str = "",
    ) -> None:
        super().__init__(mesh, kind, rank, cause, host, last_lines, version, dict(stacks), remedy)
        self.mesh = mesh
        self.kind = kind
        self.rank = rank
        self.cause = cause
        self.host = host
        self.last_lines = tuple(last_lines)
        self.version = version
        self.stacks = dict(stacks)
        self.remedy = remedy

    def __str__(self) -> str:
        rank = f"rank {self.rank}" if self.rank >= 0 else "the mesh"
        rank += f" on {self.host}" if self.host and self.host not in self.cause else ""
        what = f"{rank} {self.kind}: {self.cause}"
        if self.kind == "lost":
            return f"tensors of {self.mesh} are lost: {self.cause}"
        if self.version >= 0:
            return f"the tensors of {self.mesh} stopped at version {self.version}: {what}; heal_mesh(mesh) repairs it"
        if self.remedy:
            return f"the tensors of {self.mesh} stopped: {what}; {self.remedy}"
        return f"the tensors of {self.mesh} are gone: {what}; spawn procs again and load the last checkpoint"
