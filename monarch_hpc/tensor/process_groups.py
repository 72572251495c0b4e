"""Process groups of torch.distributed for functions that run on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.opening import view_of
from monarch_hpc.tensor.operations import groups_along
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import GroupSpec

__all__ = ["RemoteProcessGroup", "check_groups"]


class RemoteProcessGroup:
    """The ranks along dimensions of a mesh, as an argument of functions with `remote`.

    There it is a process group of torch.distributed, which lives for the call: ``dist.all_reduce(x, group=group)``. It
    is also the default group meanwhile, so that ``dist.get_rank()`` is this rank's place in it.

    Args:
        dims: dimensions of the mesh; ranks are in the order of their coordinates.
        mesh: the mesh.

    Raises:
        KeyError: no dimension of that name.
        ValueError: a dimension stands twice, or there is none.
    """

    def __init__(self, dims: str | Sequence[str], mesh: ProcMesh) -> None:
        view = view_of(mesh)
        self.dims = (dims,) if isinstance(dims, str) else tuple(dims)
        view.region.extent.check_known(self.dims)
        if not self.dims or len(set(self.dims)) < len(self.dims):
            raise ValueError(f"a process group is along one or more dimensions, each once, not {self.dims}")
        self.spec = GroupSpec(view.engine.key, groups_along(view.region, self.dims))

    def size(self) -> int:
        """The number of ranks in each group."""
        return len(self.spec.groups[0])

    def __repr__(self) -> str:
        return f"<RemoteProcessGroup of {self.size()} ranks along {', '.join(self.dims)}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a RemoteProcessGroup cannot be pickled: pass it to functions with remote()")


def check_groups(group: RemoteProcessGroup, view: View, function: object) -> GroupSpec:
    """The description of a group for a call on the ranks of *view*.

    Raises:
        ValueError: a group has ranks there and elsewhere, which would wait for each other, or is of other procs.
    """
    ranks = set(view.ranks)
    covered = [members for members in group.spec.groups if ranks & set(members)]
    if group.spec.key != view.engine.key or sum(map(len, covered)) != len(ranks):
        raise ValueError(
            f"{group!r} has other ranks than {view.name} {view.region.extent}, on which {function!r} runs: make one of "
            "that mesh"
        )
    return group.spec
