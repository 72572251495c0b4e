"""Memory that lies apart: its layout, and what comes in keys."""

from __future__ import annotations

import pytest

from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.transport.memory.key import ID_BYTES, Key
from monarch_hpc.transport.memory.places import Places

RANGES = [(4096 + 8, 100), (1 << 40, 0), (64, 64), (12_345, 1)]


def test_ranges_stay_aligned_and_never_touch() -> None:
    places = Places.of(RANGES)
    assert [start % 64 for start in places.starts] == [address % 64 for address, _size in RANGES]
    ends = [start + size for start, size in zip(places.starts, places.sizes, strict=True)]
    assert all(end < start for end, start in zip(ends, list(places.starts)[1:], strict=False))
    assert places.num_bytes == ends[-1]


def test_a_byte_is_found_in_its_range_and_none_in_between() -> None:
    places = Places.of(RANGES)
    for index, (start, size) in enumerate(zip(places.starts, places.sizes, strict=True)):
        assert places.find(start, size) == index and places.find(start, size + 1) == -1
    assert places.find(0, 1) == -1 and places.find(places.num_bytes, 1) == -1


def test_a_key_of_memory_that_lies_apart_reads_back_and_knows_its_ranges() -> None:
    for rkeys in ((), (b"a", b"", b"ccc", b"dd")):
        before = Places.of(RANGES)
        places = Places(before.starts, before.sizes, before.addresses, rkeys)
        key = Key(bytes(ID_BYTES), places.num_bytes, writable=False, places=places)
        assert Key.parse(key.pack()) == key
        third = places.starts[2]
        assert key.remote(third + 5) == (64 + 5, rkeys[2] if rkeys else b"", 2)
        assert key.locate(third + 5, 4104) == 69
        assert not key.problem(third, 64, write=False)
        assert "not all of one array" in key.problem(third, 65, write=False)
        assert key.ends(4104) == [4104, 4203, 64, 127, 12_345, 12_345]


def test_damaged_places_are_no_key() -> None:
    key = Key(bytes(ID_BYTES), 500, writable=False, places=Places.of(RANGES)).pack()
    for damaged in (key[:-1], key + b"x", key[:33], key[:33] + b"\xff\xff\xff\xff" + key[37:]):
        with pytest.raises(MemoryAccessError, match="not a memory key"):
            Key.parse(damaged)
