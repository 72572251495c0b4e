"""Objects that misbehave in every method, and strategies for the recipes that describe them.

A recipe is plain data: it is sent to an actor, which makes the hostile object there.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

__all__ = ["DEADLY", "ERRORS", "HUGE_CHARS", "OBJECTS", "Recipe", "collected", "make", "make_error", "recipes"]

HUGE_CHARS = 3 << 20
"""More than the frame limit that tests with huge objects set."""

_DEPTH = 10_000
"""Deeper than pickle and `repr` can follow."""

_SLOW_S = 0.02

OBJECTS: dict[str, type] = {"object": object, "dict": dict, "str": str, "list": list, "int": int}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the objects of a test, so that they misbehave in `__del__` before the next test."""
    yield
    gc.collect()


ERRORS: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (
        ValueError,
        KeyError,
        OSError,
        MemoryError,
        RecursionError,
        StopIteration,
        StopAsyncIteration,
        KeyboardInterrupt,
        SystemExit,
        GeneratorExit,
        asyncio.CancelledError,
        BaseExceptionGroup,
        ExceptionGroup,
        BaseException,
    )
}

DEADLY = [
    name
    for name, error in ERRORS.items()
    if not issubclass(error, Exception) and not issubclass(error, asyncio.CancelledError)
]
"""An actor that raises one of these dies."""

_METHODS: dict[str, Callable[..., object]] = {
    "__str__": lambda _self: 7,
    "__repr__": lambda _self: "r" * HUGE_CHARS,
    "__reduce__": lambda _self: "nowhere.to.be.found",
    "__reduce_ex__": lambda _self, _protocol: (print, 7),
    "__getstate__": lambda _self: threading.Lock(),
    "__setstate__": lambda _self, _state: 7,
    "__eq__": lambda _self, _other: True,
    "__hash__": lambda _self: 7,
    "__del__": lambda _self: 7,
    "__getattr__": lambda self, _name: self,
    "__setattr__": lambda _self, _name, _value: None,
    "__len__": lambda _self: -7,
    "__bool__": lambda _self: 7,
    "__iter__": lambda _self: itertools.count(),
    "items": lambda _self: zip(itertools.count(), itertools.count(), strict=False),
    "add_note": lambda _self, _note: 7,
    "with_traceback": lambda _self, _trace: 7,
}
"""Methods that may misbehave, each with the value that it returns if it does not raise."""

_ATTRIBUTES: dict[str, object] = {
    "__class__": KeyboardInterrupt,
    "__dict__": 7,
    "__traceback__": 7,
    "__cause__": 7,
    "__context__": 7,
    "__notes__": [7],
    "args": 7,
    "code": 10**30,
    "exceptions": 7,
}

_SHAPES = ("plain", "huge", "deep", "cyclic", "slow", "chained")


@dataclass(frozen=True)
class Recipe:
    """Description of an object that misbehaves.

    Attributes:
        base: name of the base class, in `OBJECTS` or `ERRORS`.
        flaws: the methods and attributes that misbehave; ``metaclass`` for the class itself.
        raises: name of the exception that they raise, in `ERRORS`; empty if they return wrong values.
        shape: shape of the object's content.
    """

    base: str
    flaws: tuple[str, ...] = ()
    raises: str = ""
    shape: str = "plain"


def recipes(bases: Sequence[str], *, exits: bool = True) -> st.SearchStrategy[Recipe]:
    """Strategy for recipes.

    Args:
        exits: whether flaws may raise `SystemExit`, which ends the process if an endpoint raises it.
    """
    flaws = [*_METHODS, *_ATTRIBUTES, "metaclass", "__getattribute__"]
    raised = ["", *(name for name in ERRORS if exits or name != "SystemExit")]
    return st.builds(
        Recipe,
        st.sampled_from(list(bases)),
        st.lists(st.sampled_from(flaws), max_size=3, unique=True).map(tuple),
        st.sampled_from(raised),
        st.sampled_from(_SHAPES),
    )


def make(recipe: Recipe) -> Any:
    """Make the object of a recipe."""
    body = {flaw: _flaw(flaw, recipe) for flaw in recipe.flaws if flaw != "metaclass"}
    body.setdefault("__hash__", object.__hash__)
    metaclass = type("Odd", (type,), _odd(recipe)) if "metaclass" in recipe.flaws else type
    base = ERRORS.get(recipe.base) or OBJECTS[recipe.base]
    cls = type.__call__(metaclass, f"Hostile{recipe.base}", (base,), body)
    content = _content(recipe.shape)
    value: Any
    if issubclass(base, BaseExceptionGroup):
        value = base.__new__(cls, "g", [ValueError(content)])
    elif issubclass(base, BaseException):
        value = base.__new__(cls, content)
        base.__init__(value, content)
    elif base is int:
        value = int.__new__(cls, 7)
    elif base is str:
        value = str.__new__(cls, content if type(content) is str else "s")
    else:
        value = base.__new__(cls)
        if base is dict:
            dict.__setitem__(value, _key(recipe), content)
        elif base is list:
            list.append(value, content)
        else:
            object.__setattr__(value, "content", content)
    if recipe.shape == "chained" and issubclass(base, BaseException):
        vars(BaseException)["__context__"].__set__(value, _chain())
    return value


def make_error(name: str) -> BaseException:
    """Return a plain exception of a class in `ERRORS`."""
    cls: Any = ERRORS[name]
    if not issubclass(cls, BaseExceptionGroup):
        error: BaseException = cls("as asked")
    elif issubclass(cls, Exception):
        error = cls("as asked", [ValueError()])
    else:
        error = cls("as asked", [GeneratorExit()])
    return error


def _flaw(name: str, recipe: Recipe) -> object:
    def misbehave(self: object, *args: object, **kwargs: object) -> object:
        if recipe.shape == "slow":
            threading.Event().wait(_SLOW_S)
        if recipe.raises:
            raise make_error(recipe.raises)
        return _METHODS[name](self, *args, **kwargs) if name in _METHODS else _ATTRIBUTES.get(name)

    return property(misbehave) if name in _ATTRIBUTES else misbehave


def _odd(recipe: Recipe) -> dict[str, object]:
    def misbehave(_cls: object, *_args: object) -> bool:
        if recipe.raises:
            raise make_error(recipe.raises)
        return True

    return {
        "__eq__": misbehave,
        "__hash__": lambda _cls: 7,
        "__instancecheck__": misbehave,
        "__subclasscheck__": misbehave,
        "__name__": property(misbehave),
        "__call__": misbehave,
    }


def _key(recipe: Recipe) -> object:
    body = {"__repr__": _flaw("__repr__", recipe), "__hash__": object.__hash__}
    return type("Key", (), body)()


def _content(shape: str) -> object:
    if shape == "huge":
        return "x" * HUGE_CHARS
    if shape == "deep":
        deep: list[object] = []
        for _ in range(_DEPTH):
            deep = [deep]
        return deep
    if shape == "cyclic":
        cyclic: list[object] = []
        cyclic.append(cyclic)
        return cyclic
    return "content"


def _chain() -> BaseException:
    last = ValueError(0)
    for number in range(1, _DEPTH):
        following = ValueError(number)
        following.__context__ = last
        last = following
    return last
