"""A remote exception is caught by its original class and by `ActorError`, and is otherwise unchanged."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from monarch_hpc.actor.messages.remote_error import as_actor_error
from monarch_hpc.core.errors import ActorDied, ActorError


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
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_is_both_and_looks_as_before(error: Exception) -> None:
    cls, text, words = type(error), str(error), repr(error)
    attributes = {
        name: getattr(error, name, None) for name in ("errno", "filename", "name", "path", "start", "value", "a", "b")
    }
    error.add_note("on n1")
    both = as_actor_error(error)
    assert isinstance(both, cls) and isinstance(both, ActorError)
    assert (type(both).__name__, str(both), repr(both), both.__notes__) == (cls.__name__, text, words, ["on n1"])
    assert {name: getattr(both, name, None) for name in attributes} == attributes
    assert getattr(both, "exception", None) in (both, "its own")
    assert traceback.format_exception_only(both)[0].strip().endswith(text)
    assert as_actor_error(both) is both
    for again in (pickle.loads(pickle.dumps(both)), copy.copy(both)):
        assert type(again) is cls and str(again) == text
        assert {name: getattr(again, name, None) for name in attributes} == attributes


@pytest.mark.parametrize(
    "error",
    [ActorDied("a", "b"), ExceptionGroup("g", [ValueError()]), KeyboardInterrupt(), SystemExit(3), Refusing("r")],
)
def test_some_stay_as_they_are(error: BaseException) -> None:
    assert as_actor_error(error) is error


def test_its_cause_and_context_stay() -> None:
    error = ZeroDivisionError("0")
    error.__cause__, error.__context__ = ValueError("cause"), KeyError("context")
    both = as_actor_error(error)
    assert isinstance(both.__cause__, ValueError) and isinstance(both.__context__, KeyError)
    slotted = as_actor_error(Slotted("s"))
    assert isinstance(slotted, Slotted)
