"""What a program gets of its job: a mesh of hosts for each name."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.mesh.host import HostMesh

__all__ = ["JobState", "cut"]


class JobState:
    """The hosts of a job: ``state.trainers`` is the mesh called ``trainers``."""

    def __init__(self, hosts: Mapping[str, HostMesh]) -> None:
        self._hosts = dict(hosts)

    def __getattr__(self, name: str) -> HostMesh:
        try:
            return self.__dict__["_hosts"][name]  # type: ignore[no-any-return]  # it is what the constructor got
        except KeyError:
            known = ", ".join(sorted(self.__dict__.get("_hosts", ()))) or "none"
            raise AttributeError(f"the job has no mesh {name!r}; it has: {known}") from None

    def __repr__(self) -> str:
        return f"JobState({self._hosts})"


def cut(hosts: HostMesh, meshes: Mapping[str, int]) -> JobState:
    """Cut *hosts* into *meshes*, one after the other.

    Raises:
        ValueError: there are too few.
    """
    needed = sum(meshes.values())
    if len(hosts) < needed:
        raise ValueError(f"the meshes {dict(meshes)} need {needed} hosts, there are {len(hosts)}")
    found: dict[str, HostMesh] = {}
    first = 0
    for name, num in meshes.items():
        found[name] = hosts.slice(hosts=slice(first, first + num))
        first += num
    return JobState(found)
