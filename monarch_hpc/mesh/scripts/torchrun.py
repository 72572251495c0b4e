"""The environment variables that torchrun sets for a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.gpus import GPU_VARIABLES

__all__ = ["TorchRank", "gpu_changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRank:
    """A rank in torchrun's terms.

    Attributes:
        rank: index among all *world_size* ranks.
        local_rank: index among the *local_world_size* ranks of its host.
        group_rank: index of its host among the *group_world_size* hosts.
        role_name: torchrun's `--role`. All ranks have the same role here.
        master_addr, master_port: address of the rendezvous, which rank 0 serves.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role_name: str
    master_addr: str
    master_port: int

    def variables(self) -> dict[str, str]:
        """The environment variables of the rank."""
        values = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": self.group_rank,
            "GROUP_WORLD_SIZE": self.group_world_size,
            "ROLE_NAME": self.role_name,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
        }
        return {name: str(value) for name, value in values.items()}


def gpu_changes(environment: Mapping[str, str], given: Sequence[str], seen: Sequence[str]) -> dict[str, str]:
    """Return the changes to *environment* that make the GPUs *seen* visible to a rank.

    A variable that was changed since the start of the proc is left alone: user code changed it on purpose.

    Args:
        environment: the environment to change.
        given: GPUs that were visible to the proc at its start, its own first.
        seen: GPUs to make visible, in this order.
    """
    as_given = ",".join(given)
    return {name: ",".join(seen) for name in GPU_VARIABLES if given and environment.get(name) == as_given}
