from __future__ import annotations

import pytest

from monarch_hpc.transport.ucx.headroom import ROOM_BYTES, find_memory_shortage

MIB = 1 << 20
STATM = f"{300 << 8} 5000 2000 700 0 {100 << 8} 0\n"
"""A process with 300 MiB of address space, 100 MiB of them private and writable."""


@pytest.mark.parametrize("space", [-1, 300 * MIB + ROOM_BYTES, 1 << 50])
@pytest.mark.parametrize("data", [-1, 100 * MIB + ROOM_BYTES, 1 << 50])
def test_without_a_tight_limit_there_is_room(space: int, data: int) -> None:
    assert find_memory_shortage(STATM, 4096, space, data) == ""


@pytest.mark.parametrize(
    ("space", "data", "limit"),
    [
        (300 * MIB + ROOM_BYTES - 1, -1, "the limit of 812 MiB (ulimit -v) leaves 512 MiB"),
        (310 * MIB, -1, "the limit of 310 MiB (ulimit -v) leaves 10 MiB"),
        (1 << 50, 150 * MIB, "the limit of 150 MiB (ulimit -d) leaves 50 MiB"),
        (299 * MIB, 0, "the limit of 299 MiB (ulimit -v) leaves 0 B"),
    ],
)
def test_a_limit_that_leaves_too_little_is_named(space: int, data: int, limit: str) -> None:
    shortage = find_memory_shortage(STATM, 4096, space, data)
    assert shortage == f"UCX needs 512 MiB of memory that may be mapped, and {limit}"
