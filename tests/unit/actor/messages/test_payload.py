"""Calls and failures survive serialization, whatever users raise."""

from __future__ import annotations

import threading

import pytest

from monarch_hpc.actor.messages.payload import (
    call_head,
    pack_call,
    pack_failure,
    unpack_call,
    unpack_failure,
    unpack_head,
)
from monarch_hpc.core.errors import ActorFailed
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.frames import Frame, Kind


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
