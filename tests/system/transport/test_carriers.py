"""Lists over memory of several kinds: each piece goes the best way that its memory has, and the list ends as one."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.core.storage import segment
from monarch_hpc.transport.memory.moves import Move, Moves
from tests.system.support.parties import PATIENCE_S, Party, join, parties

__all__ = ["parties"]

_NUM, _SIZE = 200, 300


@pytest.mark.parametrize("fabric", ["cma", "tcp", "ucx-shm"])
def test_a_list_over_memory_of_several_kinds_is_one(parties: Callable[..., Party], fabric: str) -> None:
    owner, _, channel = join(parties, fabric)
    shared = segment.create(2 * _NUM * _SIZE)
    held = [shared, memoryview(bytearray(2 * _NUM * _SIZE)), memoryview(bytearray(2 * _NUM * _SIZE))]
    for one in held:
        one[:] = os.urandom(len(one))
    memories = [owner.node.register(one) for one in held]
    names = [memory.parts.id for memory in memories]
    into = [memoryview(bytearray(_SIZE)) for _ in range(_NUM)]
    data = [memoryview(os.urandom(_SIZE)) for _ in range(_NUM)]
    moves = Moves(
        [Move(names[at % 3], at * _SIZE, one, False) for at, one in enumerate(into)]
        + [Move(names[at % 3], (_NUM + at) * _SIZE, one, True) for at, one in enumerate(data)]
    )
    for _submission in range(2):
        channel.memory.move_all(moves).wait(PATIENCE_S)
        assert all(one == held[at % 3][at * _SIZE : (at + 1) * _SIZE] for at, one in enumerate(into))
        assert all(one == held[at % 3][(_NUM + at) * _SIZE :][:_SIZE] for at, one in enumerate(data))
        for one in into:
            one[:] = bytes(_SIZE)
    paths = [channel.memory.path(name) for name in names]
    assert paths == ["shm", *(["cma"] * 2 if fabric == "cma" else [""] * 2)]
    outside = Moves([*moves.moves[:5], Move(names[1], len(shared), memoryview(bytearray(1)), False)])
    with pytest.raises(MemoryAccessError, match="piece 5 of 6"):
        channel.memory.move_all(outside).wait(PATIENCE_S)
    for memory in memories:
        memory.close()
