"""The environment of a script's ranks."""

from __future__ import annotations

import pytest

from monarch_hpc.mesh.scripts.script import RankPlace, environment_of, gpus_of


def places(*hosts: int, gpus: tuple[tuple[str, ...], ...] = ()) -> list[RankPlace]:
    own = gpus or ((),) * len(hosts)
    return [
        RankPlace(f"n{host}", host, f"10.0.0.{host}", 4000 if not rank else 0, own[rank])
        for rank, host in enumerate(hosts)
    ]


def test_ranks_find_what_torchrun_would_tell_them() -> None:
    # A slice of a larger mesh: hosts 3 and 5, which need not be neighbours.
    assert environment_of(2, places(3, 3, 5, 5), "feedbeef") == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.3",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_RUN_ID": "feedbeef",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def test_local_ranks_count_the_ranks_of_a_host_in_any_order() -> None:
    # A mesh whose outermost dimension is not that of the hosts.
    mesh = places(0, 1, 0, 1)
    assert [environment_of(rank, mesh, "")["LOCAL_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert [environment_of(rank, mesh, "")["GROUP_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ((("0", "1", "2", "3"), ("2", "3", "0", "1")), ["0", "2", "1", "3"]),  # own first, two GPUs for each
        ((("0", "1"), ("1", "0")), ["0", "1"]),  # own first
        ((("4",), ("5",)), ["4", "5"]),  # own only
        ((("0", "1"), ("0", "1")), ["0", "1"]),  # all, in Slurm's order
        (((), ()), []),
    ],
)
def test_the_local_rank_is_the_index_of_the_own_gpu(visible: tuple[tuple[str, ...], ...], expected: list[str]) -> None:
    mesh = places(0, 0, 1, gpus=(*visible, ("9",)))
    assert gpus_of(0, mesh) == gpus_of(1, mesh) == expected
