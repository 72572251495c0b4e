"""The mesh of hosts: what a program gets of its allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.controller import Controller
from monarch_hpc.mesh.here import proc_of
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.view import MeshView
from monarch_hpc.wire.messages import HostEntry

__all__ = ["HostMesh", "hosts", "this_proc"]


class HostMesh(MeshView):
    """Hosts of an allocation, along the dimension ``hosts``."""

    def __init__(self, region: Region, entries: Sequence[HostEntry], controller: Controller) -> None:
        super().__init__(region)
        self._entries = entries
        self._controller = controller

    def _viewing(self, region: Region) -> Self:
        return type(self)(region, self._entries, self._controller)

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent}: {', '.join(entry.name for entry in self.entries)}>"

    @property
    def entries(self) -> list[HostEntry]:
        """What each host of this view was granted, in order."""
        return [self._entries[rank] for rank in self._region.base_ranks()]

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        *,
        name: str = "",
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> ProcMesh:
        """Start procs on every host of this view and return their mesh once all of them answer.

        Args:
            per_host: dimensions of the procs on one host, e.g. ``{"gpus": 4}``; None starts one.
            name: prefix of their output lines, where one program has several meshes.
            env: variables to set in every proc.
            preload: modules to import once per host, before procs are forked: they then start in
                milliseconds and share the memory. The modules must not start threads or CUDA.

        Raises:
            SpawnError: a proc did not start; those that did are ended.
            ValueError: a dimension repeats one of the hosts', or has a size below 1.
        """
        inner = Extent.of(dict(per_host or {}))
        extent = Extent((*self.extent.labels, *inner.labels), (*self.extent.sizes, *inner.sizes))
        mesh, procs = self._controller.spawn_procs(
            [entry.rank for entry in self.entries], len(inner), name, dict(env or {}), list(preload)
        )
        return ProcMesh(name or f"procs{mesh}", mesh, Region.whole(extent), procs, self._controller, self._controller)


def hosts() -> HostMesh:
    """The hosts of this program's allocation.

    Under `monarch-hpc run` those of the chosen allocation; in a program started by itself one
    embedded host on this machine, which ends with the program.

    Raises:
        AllocationError: the allocation cannot be reached, or has ended.
        VersionMismatch: it runs another Python or package.
    """
    controller = Controller.instance()
    entries = list(controller.hosts.values())
    return HostMesh(Region.whole(Extent(("hosts",), (len(entries),))), entries, controller)


def this_proc() -> ProcMesh:
    """The process that this code runs in, as a mesh of one proc without dimensions.

    In the program it is the program's own process: actors that it spawns there live in it, and end with
    it. Calls within a process go through no socket; arguments and results are copied all the same.

    Raises:
        AllocationError: in the program: its allocation cannot be reached, or has ended.
    """
    return proc_of(Runtime.current or Controller.instance())
