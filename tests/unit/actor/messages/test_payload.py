"""Calls and failures survive serialization, whatever users raise."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

from monarch_hpc.actor.casts.reduction import Folding
from monarch_hpc.actor.messages.payload import call_head, pack_call, pack_spawn, unpack_call, unpack_head, unpack_spawn
from monarch_hpc.actor.messages.sent_failures import pack_failure, unpack_failure
from monarch_hpc.core.errors import ActorFailed
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads


class _Picky(Exception):
    """Pickles, but cannot be rebuilt: its constructor takes more than its message."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class _Locked(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


def _travel(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 as a cell does
        body, buffers = pack_failure("actor a[0] on n1, endpoint e", raised)
    return unpack_failure(Frame(Kind.FAILURE, body=body, buffers=list(buffers)))


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyError("k"), OSError(2, "gone"), ExceptionGroup("g", [ValueError("bad")])]
)
def test_an_exception_arrives_as_itself_with_its_traceback(error: Exception) -> None:
    arrived = _travel(error)
    assert isinstance(arrived, type(error)) and repr(arrived) == repr(error)
    (note,) = arrived.__notes__
    assert "actor a[0] on n1, endpoint e" in note and "Traceback" in note and "raise error" in note


@pytest.mark.parametrize(
    ("error", "words"), [(_Picky(1, 2), "could not be rebuilt here"), (_Locked(), "itself could not be sent")]
)
def test_one_that_cannot_travel_arrives_in_words(error: Exception, words: str) -> None:
    arrived = _travel(error)
    assert isinstance(arrived, ActorFailed)
    assert (arrived.type_name, arrived.message) == (type(error).__name__, str(error))
    assert words in arrived.remote_traceback and "raise error" in arrived.remote_traceback


def test_a_call_arrives_with_the_view_it_was_sent_to() -> None:
    region = Region.whole(Extent.of({"hosts": 3, "gpus": 2})).slice(hosts=slice(None, None, -1), gpus=1)
    body, buffers = pack_call(call_head("greet", region), (1, "a"), {"loud": True})
    head, args, kwargs = unpack_call(Frame(Kind.CALL, body=body, buffers=buffers))
    assert (args, kwargs) == ((1, "a"), {"loud": True})
    assert unpack_head(head) == ("greet", region)


_REGION = Region.whole(Extent(("hosts",), (2,)))
_NUMBERS = list(range(1 << 40, (1 << 40) + 200_000))
"""A long pickle without any long object."""


def test_a_spawn_with_a_long_pickle_arrives_whole() -> None:
    body, buffers = pack_spawn(
        "name", _REGION, ("creator",), dict, (_NUMBERS, b"x" * (1 << 20)), {"array": np.arange(10_000)}
    )
    frame = Frame(Kind.SPAWN, 1, 0, body, buffers)
    spawned = unpack_spawn(frame)
    assert (spawned.name, spawned.region, spawned.creator) == ("name", _REGION, ("creator",))
    cls, args, kwargs = cast(tuple[Any, Any, Any], loads(spawned.made, frame.buffers))
    assert (cls, args) == (dict, (_NUMBERS, b"x" * (1 << 20)))
    np.testing.assert_array_equal(kwargs["array"], np.arange(10_000))


def test_functions_of_a_reduction_with_long_data_arrive_whole() -> None:
    table: dict[str, Any] = {"numbers": _NUMBERS, "bytes": b"x" * (1 << 20), "array": np.arange(100_000)}
    inner = cast(tuple[Any, Any], loads(Folding(0, lambda _so_far, key: len(table[key]), max).pack()))
    identity, combine, merge = cast(tuple[Any, Any, Any], loads(*inner))
    assert [combine(identity, key) for key in table] == [200_000, 1 << 20, 100_000] and merge is max


def test_an_exception_keeps_the_types_of_its_long_values() -> None:
    given = ValueError(b"x" * (1 << 20), bytearray(1 << 20), np.zeros(100_000))
    body, buffers = pack_failure("here", given)
    read = unpack_failure(Frame(Kind.FAILURE, 1, 0, body, buffers))
    assert [type(value) for value in read.args] == [bytes, bytearray, np.ndarray]
    read.args[2][0] = 1.0  # writable
