"""The digests of calls, by which messages that kill procs are known again."""

from __future__ import annotations

from monarch_hpc.actor.messages.payload import call_head, pack_call
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.program.procs.quarantine import digest_of

WHOLE = Region.whole(Extent(("p",), (4,)))


def digest(method: str, *args: object, region: Region = WHOLE, actor: int = 7, **kwargs: object) -> bytes:
    body, buffers = pack_call(call_head(method, region), args, kwargs)
    return digest_of(actor, body, buffers)


def test_calls_are_told_apart_by_actor_endpoint_and_arguments() -> None:
    calls = [
        digest("eat", 1),
        digest("eat", 1, actor=8),
        digest("eat", 2),
        digest("eat"),
        digest("eat", what=1),
        digest("eat", bytes(100_000)),
        digest("eat", bytes(100_001)),
        digest("eat", bytes(99_999) + b"1"),
        digest("drink", 1),
    ]
    assert len(set(calls)) == len(calls)


def test_the_same_call_of_another_view_is_the_same() -> None:
    one = Region(Extent((), ()), 2, ())
    assert digest("eat", 1, region=one) == digest("eat", 1)
    assert digest("eat", {"a": [1, "b"]}) == digest("eat", {"a": [1, "b"]})


def test_of_large_arguments_both_ends_count() -> None:
    large = bytearray(5 << 20)
    first = digest("eat", bytes(large))
    assert digest("eat", bytes(large)) == first
    for at in (0, len(large) - 1):
        large[at] = 1
        assert digest("eat", bytes(large)) != first
        large[at] = 0
