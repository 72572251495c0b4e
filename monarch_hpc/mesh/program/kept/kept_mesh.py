"""A kept mesh, as users see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh

__all__ = ["KeptMesh"]


@dataclass(frozen=True, slots=True)
class KeptMesh:
    """What `kept` returns.

    Attributes:
        name: the name under which it is kept.
        run: id of the run that has started the procs; its folder has their output.
        procs: the procs, with the dimensions that they were started with. They are not this program's: they stay when
            it ends, and so do the actors that it spawns on them.
        meshes: the actors that programs have spawned there, by name; of several with a name, the later ones have
            ``#2``, ``#3`` and so on at its end.
        problems: the meshes of actors that cannot be called, by name, and why: their class is not found here.
    """

    name: str
    run: str
    procs: ProcMesh
    meshes: Mapping[str, ActorMesh[Any]]
    problems: Mapping[str, str]
    _stop: Callable[[], Future[None]]

    def __getitem__(self, name: str) -> ActorMesh[Any]:
        """The actors called *name*.

        Raises:
            KeyError: there are none, or their class is not found here; the error says which.
        """
        if name in self.meshes:
            return self.meshes[name]
        known = f"the kept mesh {self.name} has {', '.join(self.meshes) or 'no actors'}"
        raise KeyError(f"{name}: {self.problems.get(name) or known}")

    def stop(self) -> Future[None]:
        """End the procs, for all programs: their calls end with `ActorDied`. The future is done when none is left."""
        return self._stop()
