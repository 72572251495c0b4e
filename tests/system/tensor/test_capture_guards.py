"""Guards of captured steps: whatever they read beside their arguments may be replaced, and the next call sees it."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import ProcMesh
from monarch_hpc.tensor import inspect

Case = tuple[Callable[[Any], Any], Callable[[], object]]
"""A step, and what changes what it reads."""


class Pair(NamedTuple):
    """Two numbers."""

    one: float
    other: float


class Shade(enum.Enum):
    """Two names."""

    LIGHT = 1
    DARK = 2


class Slotted:
    """A number without a dictionary."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 2.0


class Scaled(nn.Module):
    """A module with a function among its attributes, and a number of its class."""

    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.function: Any = torch.relu

    def forward(self, x: Any) -> Any:
        return self.function(x) * self.factor


def _read(value: Any, use: Callable[[Any, Any], Any], other: Any) -> Case:
    """A step that reads a value out of a dictionary, and replaces it."""
    held = {"value": value}

    def step(x: Any) -> Any:
        return use(x, held["value"])

    return step, lambda: held.update(value=other)


def _cell(value: Any, other: Any, use: Callable[[Any, Any], Any]) -> Case:
    """Likewise, out of its closure."""

    def step(x: Any) -> Any:
        return use(x, value)

    def change() -> None:
        nonlocal value
        value = other

    return step, change


def _changed(holder: Any, name: str, value: Any, use: Callable[[Any, Any], Any]) -> Case:
    """A step that reads an object, of which an attribute is set."""

    def step(x: Any) -> Any:
        return use(x, holder)

    return step, lambda: setattr(holder, name, value)


def _reordered() -> Case:
    held = {"add": 1.0, "multiply": 3.0}

    def step(x: Any) -> Any:
        for name, number in held.items():
            x = x + number if name == "add" else x * number
        return x

    return step, lambda: held.update(add=held.pop("add"))


def _exchanged() -> Case:
    held = {1, 2}

    def step(x: Any) -> Any:
        return x * sum(held)

    def change() -> None:
        held.remove(2)
        held.add(5)

    return step, change


def _sent() -> Case:
    held = {"value": torch.ones(3)}

    def step(x: Any) -> Any:
        return x + held["value"]

    return step, lambda: held.update(value=torch.zeros(3))


def _module() -> Case:
    options = ModuleType("options_of_a_program")
    options.factor = 2.0  # type: ignore[attr-defined]

    def step(x: Any) -> Any:
        return x * options.factor

    return step, lambda: setattr(options, "factor", 4.0)


def _class() -> Case:
    class Options:
        factor = 2.0

    def step(x: Any) -> Any:
        return x * Options.factor

    return step, lambda: setattr(Options, "factor", 4.0)


def _call(x: Any, function: Any) -> Any:
    return function(x)


CASES: dict[str, Callable[[], Case]] = {
    "zero with a sign": lambda: _read(0.0, lambda x, n: x * n, -0.0),
    "tuple of flags": lambda: _read((1,), lambda x, n: x + (2 if n[0] is True else 1), (True,)),
    "tuple of floats": lambda: _read((1,), lambda x, n: (x > 0) * n[0], (1.0,)),
    "tuple in a tuple": lambda: _read(((1, 2.0), 3), lambda x, n: x * n[0][1], ((1, 5.0), 3)),
    "named tuple": lambda: _read(Pair(1.0, 2.0), lambda x, n: x * n.other, Pair(1.0, 6.0)),
    "enumeration": lambda: _read(Shade.LIGHT, lambda x, n: x + (n is Shade.DARK), Shade.DARK),
    "dtype": lambda: _read(torch.float64, lambda x, n: x.to(n), torch.float32),
    "object": lambda: _read(SimpleNamespace(n=2.0), lambda x, one: x * one.n, SimpleNamespace(n=3.0)),
    "list": lambda: _read([1.0], lambda x, n: x * n[0], [2.0]),
    "function": lambda: _read(torch.relu, _call, torch.tanh),
    "function of a closure": lambda: _cell(torch.relu, torch.tanh, _call),
    "function with arguments": lambda: _read(
        functools.partial(torch.mul, other=2.0), _call, functools.partial(torch.mul, other=5.0)
    ),
    "function of a module": lambda: _changed(Scaled(), "function", torch.tanh, _call),
    "attribute that is new": lambda: _changed(SimpleNamespace(), "n", 4.0, lambda x, one: x * getattr(one, "n", 1.0)),
    "attribute without a dictionary": lambda: _changed(Slotted(), "number", 5.0, lambda x, one: x * one.number),
    "attribute of a class over its number": lambda: _changed(Scaled(), "factor", 5.0, _call),
    "attribute of a class": _class,
    "attribute of a module of Python": _module,
    "order of a dictionary": _reordered,
    "element of a set": _exchanged,
    "tensor of the program": _sent,
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_of_what_a_step_reads_is_seen(procs: ProcMesh, name: str) -> None:
    with procs.activate():
        written, change = CASES[name]()
        step = procs.capture(written)
        x = torch.tensor([-1.0, 0.5, 2.0])

        def check() -> None:
            found, expected = inspect(step(x), dp=1), inspect(written(x), dp=1)
            assert found.dtype == expected.dtype and found.numpy().tobytes() == expected.numpy().tobytes()

        for _ in range(4):
            check()
        assert (step.num_replays, step.reason) == (2, "")
        change()
        for _ in range(4):
            check()
        assert (step.num_replays, step.reason) == (4, "")


def test_arguments_that_are_zeros_of_two_signs_differ(procs: ProcMesh) -> None:
    with procs.activate():
        step = procs.capture(lambda x, number: x * number)
        x = torch.ones(2)
        for number in (*[0.0] * 4, -0.0):
            found = inspect(step(x, number), dp=0)
        assert step.num_replays == 2 and torch.signbit(found).all()


def test_logs_and_objects_that_are_new_at_each_call_are_not_compared(procs: ProcMesh) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.log: list[float] = []
            self.batch: Any = None

        def step(self, x: Any) -> Any:
            return x * 2

    with procs.activate():
        trainer = Trainer()
        step = procs.capture(trainer.step)
        for _ in range(6):
            step(torch.ones(2))
            trainer.log.append(1.0)
            trainer.batch = SimpleNamespace(n=1)
        trainer.log = []
        step(torch.ones(2))
        assert (step.num_replays, step.reason) == (5, "")


def test_a_dictionary_that_makes_what_it_lacks_is_left_as_it_is(procs: ProcMesh) -> None:
    class Making(dict[str, float]):
        def __missing__(self, name: str) -> float:
            self[name] = 7.0
            return 7.0

    held = Making(one=1.0, two=2.0)
    with procs.activate():
        step = procs.capture(lambda x: x * sum(dict(held).values()))
        for _ in range(4):
            step(torch.ones(2))
        del held["two"]
        assert inspect(step(torch.ones(2)), dp=0).tolist() == [1.0, 1.0]
        assert list(held) == ["one"]
