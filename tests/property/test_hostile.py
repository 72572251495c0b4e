"""Hostile objects: their descriptions are texts of bounded length, and packing and unpacking always ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings

from monarch_hpc.actor.messages.payload import pack_result
from monarch_hpc.actor.messages.remote_error import as_actor_error
from monarch_hpc.actor.messages.sent_failures import send_failure, unloadable, unpack_failure
from monarch_hpc.core.errors import ActorError, ActorFailed, MeshError
from monarch_hpc.core.text.description import class_name, literal_of, summary_of, text_of, trace_of
from monarch_hpc.wire.frames import Buffer, Frame, Kind
from monarch_hpc.wire.serializer import loads
from tests.hostile import ERRORS, HUGE_CHARS, OBJECTS, Recipe, collected, make, recipes

__all__ = ["collected"]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in `__del__`

_BOUND = 90_000
"""Upper bound on the length of a traceback with its message, in characters."""


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 as an actor does
        return raised


@pytest.mark.slow  # objects of megabytes
@given(recipes([*OBJECTS, *ERRORS]))
@settings(max_examples=60)
def test_all_objects_have_a_description(recipe: Recipe) -> None:
    value = make(recipe)
    ways: list[Callable[[object], str]] = [class_name, literal_of, summary_of, text_of]
    texts = [way(value) for way in ways]
    if recipe.base in ERRORS:
        texts += [trace_of(_raised(value)), str(MeshError("a mesh", {0: value, 1: value}))]
    for text in texts:
        assert type(text) is str and len(text) < _BOUND
        text.encode()
    assert texts[0] == f"Hostile{recipe.base}"


@pytest.mark.slow  # objects of megabytes
@given(recipes(list(ERRORS), exits=False))
@settings(max_examples=60)
def test_all_exceptions_arrive_as_one_that_can_be_raised(recipe: Recipe) -> None:
    sent: list[Frame] = []

    def send(body: bytes, buffers: Sequence[Buffer]) -> None:
        if len(body) > HUGE_CHARS // 3:
            raise ValueError("over a limit")
        sent.append(Frame(Kind.FAILURE, body=body, buffers=buffers))

    raised = _raised(make(recipe))  # if `__subclasscheck__` raises: on Python 3.11 the error that it raised
    send_failure("actor a[0] on n1, endpoint e", raised, send)
    (frame,) = sent
    try:
        arrived = unpack_failure(frame)
    except KeyboardInterrupt:  # raised while unpickling in the main thread: indistinguishable from Ctrl-C
        assert recipe.raises == "KeyboardInterrupt"
        return
    assert issubclass(type(arrived), Exception)
    if isinstance(arrived, ActorFailed):
        assert arrived.type_name == class_name(raised)


@pytest.mark.slow  # objects of megabytes
@given(recipes([*OBJECTS, *ERRORS], exits=False))
@settings(max_examples=60)
def test_all_results_go_into_a_frame_or_are_refused_by_name(recipe: Recipe) -> None:
    refused: Exception | None = None
    raised: BaseException | None = None
    try:
        body, buffers = pack_result(make(recipe))
    except TypeError as error:
        refused = error
    except MemoryError as error:  # no part of the result is to blame for it
        assert recipe.raises == "MemoryError"
        refused = error
    except KeyboardInterrupt:  # raised while pickling in the main thread: as above
        assert recipe.raises == "KeyboardInterrupt"
    else:
        try:
            loads(body, buffers)
        except BaseException as error:  # noqa: BLE001 raised while unpickling
            raised = error
    if refused is not None:
        assert "the result" in str(refused) and len(str(refused)) < _BOUND
    if raised is not None and not isinstance(raised, KeyboardInterrupt):
        assert issubclass(type(unloadable(raised)), Exception)


@given(recipes([name for name, cls in ERRORS.items() if issubclass(cls, Exception)], exits=False))
def test_all_exceptions_stay_of_their_class_or_are_wrapped(recipe: Recipe) -> None:
    error = make(recipe)
    cls = type(error)
    arrived = as_actor_error(error, "an endpoint")
    assert type.__subclasscheck__(ActorError, type(arrived))
    assert type.__subclasscheck__(cls, type(arrived)) or arrived.exception is error


@pytest.mark.parametrize(
    "name", ["KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError", "BaseException"]
)
def test_what_would_end_its_reader_arrives_in_words(name: str) -> None:
    frames: list[Frame] = []
    send_failure(
        "actor a[0]",
        _raised(ERRORS[name]("as asked")),
        lambda body, buffers: frames.append(Frame(Kind.FAILURE, body=body, buffers=buffers)),
    )
    arrived = unpack_failure(frames[0])
    assert isinstance(arrived, ActorFailed)
    assert (arrived.type_name, arrived.message) == (name, "as asked")


def test_a_failure_is_sent_in_ever_fewer_words() -> None:
    sizes: list[int] = []

    def refuse(body: bytes, buffers: Sequence[Buffer]) -> None:
        sizes.append(len(body) + sum(map(len, buffers)))
        raise MemoryError

    with pytest.raises(MemoryError):
        send_failure("actor a[0]", ValueError("x" * 1_000_000), refuse)
    whole, words, constant = sizes
    assert whole > 1_000_000 > 100_000 > words > 10_000 > constant
