"""The replay cache knows the latest keys, and its memory is bounded."""

from __future__ import annotations

from monarch_hpc.transport.secure.replay_cache import ReplayCache


def test_the_latest_keys_are_known_and_the_oldest_forgotten() -> None:
    cache = ReplayCache(10)
    keys = [bytes([number]) * 32 for number in range(100)]
    for number, key in enumerate(keys):
        assert key not in cache
        cache.add(key)
        assert all(known in cache for known in keys[max(0, number - 9) : number + 1])
        assert len(cache) <= 20
    assert keys[0] not in cache
