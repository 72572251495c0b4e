"""What torchrun tells a rank by variables: their names and their meaning, for all who stand in for torchrun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch_hpc.core.gpus import GPU_VARIABLES

__all__ = ["TorchRank", "retold_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRank:
    """The place of one rank.

    Attributes:
        local_rank: place among the *local_world_size* ranks of its host.
        group_rank: place of its host among *group_world_size*.
        role_name: torchrun's `--role`. All ranks have one role here.
        master_addr, master_port: of the rendezvous, which rank 0 serves.
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
        """What its environment says of it."""
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


def retold_gpus(environment: Mapping[str, str], given: Sequence[str], seen: Sequence[str]) -> dict[str, str]:
    """Return what to change in *environment* so that a rank sees the GPUs *seen*.

    Only where it is as its proc was given it: whoever changed it knows better.

    Args:
        given: what the proc sees, its own first.
    """
    as_given = ",".join(given)
    return {name: ",".join(seen) for name in GPU_VARIABLES if given and environment.get(name) == as_given}
