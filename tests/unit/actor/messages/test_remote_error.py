"""A remote exception is caught by its original class and by `ActorError`, and is otherwise unchanged."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from monarch_hpc.actor.messages.remote_error import as_actor_error, as_raised
from monarch_hpc.core.errors import (
    ActorDied,
    ActorError,
    ActorFailed,
    CallTimeout,
    MeshDied,
    MonarchError,
    SupervisionError,
)

WHERE = "actor a[0] on n1, endpoint e"


class Odd(Exception):
    def __init__(self, a: int, *, b: int) -> None:
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b

    def __reduce__(self) -> tuple[object, ...]:
        return _odd, (self.a, self.b)


def _odd(a: int, b: int) -> Odd:
    return Odd(a, b=b)


class Slotted(Exception):
    __slots__ = ("extra",)


class Refusing(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses of this")


class Neither(ActorError, SupervisionError):
    """Of both families, which only user code would do."""


class Exceptional(Exception):
    exception = "its own"


ERRORS = [
    ValueError("no", 3),
    KeyError("k"),
    FileNotFoundError(2, "no such file", "f"),
    UnicodeDecodeError("utf8", b"a", 0, 1, "bad"),
    ImportError("x", name="n", path="p"),
    TimeoutError("late"),
    StopIteration(3),
    Odd(1, b=2),
    Exceptional("e"),
    Exception("plain"),
    MonarchError("of the root"),
    CallTimeout("b[0]", (), 1.0),
    ExceptionGroup("two", [ValueError(1), KeyError(2)]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_is_both_and_looks_as_before(error: Exception) -> None:
    cls, text, words = type(error), str(error), repr(error)
    attributes = {
        name: getattr(error, name, None) for name in ("errno", "filename", "name", "path", "start", "value", "a", "b")
    }
    error.add_note("on n1")
    both = as_actor_error(error, WHERE)
    assert isinstance(both, cls) and isinstance(both, ActorError)
    assert (type(both).__name__, str(both), repr(both), both.__notes__) == (cls.__name__, text, words, ["on n1"])
    assert {name: getattr(both, name, None) for name in attributes} == attributes
    own: object = both.exception
    assert own is both or own == "its own"
    assert traceback.format_exception_only(both)[0].strip().endswith(text)
    assert as_actor_error(both, WHERE) is both
    for again in (pickle.loads(pickle.dumps(both)), copy.copy(both)):
        assert type(again) is cls and str(again) == text
        assert {name: getattr(again, name, None) for name in attributes} == attributes


@pytest.mark.parametrize(
    "error",
    [Refusing("r"), Neither("n"), ActorDied("b[1] on n2", "signal 9"), MeshDied("b.step", {1: ActorDied("b[1]", "x")})],
)
def test_what_cannot_be_both_is_wrapped(error: Exception) -> None:
    wrapped = as_actor_error(error, WHERE)
    assert type(wrapped) is ActorFailed and not isinstance(wrapped, SupervisionError)
    assert wrapped.exception is error and str(error) in str(wrapped)
    assert (wrapped.where, wrapped.type_name) == (WHERE, type(error).__name__)
    again = pickle.loads(pickle.dumps(wrapped))
    assert type(again.exception) is type(error) and str(again) == str(wrapped)


@pytest.mark.parametrize("error", [KeyError("k"), FileNotFoundError(2, "no", "/x"), Exception("plain")])
def test_what_was_raised_can_be_had_back(error: Exception) -> None:
    raised, text, args = type(error), str(error), error.args
    back = as_raised(as_actor_error(error, "k[0] on h"))
    assert (type(back), str(back), back.args) == (raised, text, args)


def test_a_group_can_still_be_split() -> None:
    caught: list[Exception] = []
    try:
        raise as_actor_error(ExceptionGroup("two", [ValueError(1), KeyError(2)]), WHERE)
    except* ValueError as values:
        caught += values.exceptions
    except* KeyError as keys:
        caught += keys.exceptions
    assert [type(error) for error in caught] == [ValueError, KeyError]


def test_an_attribute_named_exception_stays_the_users() -> None:
    class Carrying(Exception):
        def __init__(self, exception: str) -> None:
            super().__init__(exception)
            self.exception = exception

    both = as_actor_error(Carrying("cargo"), WHERE)
    assert isinstance(both, Carrying) and both.exception == "cargo"


def test_its_cause_and_context_stay() -> None:
    error = ZeroDivisionError("0")
    error.__cause__, error.__context__ = ValueError("cause"), KeyError("context")
    both = as_actor_error(error, WHERE)
    assert isinstance(both.__cause__, ValueError) and isinstance(both.__context__, KeyError)
    slotted = as_actor_error(Slotted("s"), WHERE)
    assert isinstance(slotted, Slotted)
