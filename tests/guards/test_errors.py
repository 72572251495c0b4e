"""Checks that every error class survives pickling with its fields and its message, since errors cross hosts."""

from __future__ import annotations

import inspect
import pickle
import typing
from collections.abc import Mapping, Sequence

import pytest

from monarch_hpc.core import errors
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import MonarchError

CLASSES = [getattr(errors, name) for name in errors.__all__]

SAMPLES: tuple[tuple[object, object], ...] = (
    (str, "some text"),
    (Death | str, Death(DeathKind.OOM, "some text", "n1", 3, ("first", "second"))),
    (int, 7),
    (float, 1.5),
    (DeathKind, DeathKind.NODE_FAILURE),
    (bool, True),
    (Sequence[str], ("first", "second")),
    (Sequence[int], (3, 5)),
    (Mapping[str, Sequence[str]], {"n1": ("line",), "n2": ()}),
    (Mapping[int, str], {3: "first", 5: "second"}),
    (Mapping[int, BaseException], {3: ValueError("bad"), 5: KeyError("k")}),
)


def sample(kind: object) -> object:
    for known, value in SAMPLES:
        if kind == known:
            return value
    raise AssertionError(f"no sample for {kind}: add one to SAMPLES")


def make(cls: type[BaseException]) -> BaseException:
    constructor = cls.__init__
    hints = typing.get_type_hints(constructor)
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return cls("some text")
    return cls(*(sample(hints[parameter.name]) for parameter in parameters))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickling_whole(cls: type[BaseException]) -> None:
    error = make(cls)
    error.add_note("on n1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert copy.__notes__ == ["on n1"]
    assert repr(vars(copy)) == repr(vars(error))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_is_in_the_tree_and_says_something(cls: type[BaseException]) -> None:
    assert issubclass(cls, MonarchError)
    assert cls.__name__ in (errors.__doc__ or ""), "the module's docstring draws the tree"
    assert 0 < cls.exit_code < 128
    assert "object at 0x" not in str(make(cls))
    assert str(make(cls)).strip()
